// A long list of rows of one height, of which only those in sight are in the page: ten thousand scroll like ten.

import { h } from "../dom.js";

const SPARE = 6;

/**
 * `make()` builds an element, `update(element, nth)` shows a row in it, `keyOf(nth)` names the row. A row that moves
 * keeps its element, and an element whose row has left shows another. `onDrawn(first, last)` hears what is in sight.
 */
export class Windowed {
  constructor({ height, keyOf, make, update = () => {}, onDrawn = () => {}, attributes = {} }) {
    Object.assign(this, { height, keyOf, make, update, onDrawn });
    this.count = 0;
    this.elements = new Map();
    this.spare = [];
    this.scroller = document.querySelector("#main");
    this.node = h("div", { ...attributes, class: ["windowed", attributes.class].flat() });
    this.schedule = () => {
      this.frame ??= requestAnimationFrame(() => this.draw());
    };
    this.scroller.addEventListener("scroll", this.schedule, { passive: true });
    this.resized = new ResizeObserver(this.schedule);
    this.resized.observe(this.scroller);
  }

  close() {
    this.isClosed = true;
    this.scroller.removeEventListener("scroll", this.schedule);
    this.resized.disconnect();
  }

  /** Shows this many rows from now on. */
  show(count, height = this.height) {
    this.count = count;
    this.height = height;
    this.node.style.height = `${count * height}px`;
    this.schedule();
  }

  /** Where the list begins, seen from the top of what is in sight. */
  get top() {
    return this.node.getBoundingClientRect().top - this.scroller.getBoundingClientRect().top;
  }

  draw() {
    this.frame = null;
    if (this.isClosed || !this.node.isConnected) return;
    const { top } = this;
    const first = Math.max(0, Math.floor(-top / this.height) - SPARE);
    const last = Math.min(this.count - 1, Math.ceil((this.scroller.clientHeight - top) / this.height) + SPARE);
    const wanted = new Map();
    for (let nth = first; nth <= last; nth += 1) wanted.set(this.keyOf(nth), nth);
    for (const [key, element] of this.elements) {
      if (wanted.has(key)) continue;
      this.elements.delete(key);
      if (element.contains(document.activeElement)) element.remove();
      else this.spare.push(element);
    }
    this.place(wanted);
    for (const element of this.spare.splice(0)) element.remove();
    this.onDrawn(first, last);
  }

  /** Elements stand in the order of their rows, as a screen reader reads them; one that is in place is not moved. */
  place(wanted) {
    let at = this.node.firstChild;
    for (const [key, nth] of wanted) {
      const element = this.elements.get(key) ?? this.spare.pop() ?? this.make();
      this.elements.set(key, element);
      this.update(element, nth);
      move(element, nth * this.height);
      if (element === at) at = at.nextSibling;
      else this.node.insertBefore(element, at);
    }
  }

  /** The element of a row, scrolled into sight below whatever sticks to the top (`above` pixels). */
  reveal(nth, above = 0) {
    const top = this.top + nth * this.height;
    const room = this.scroller.clientHeight;
    if (top < above) this.scroller.scrollTop += top - above;
    else if (top + this.height > room) this.scroller.scrollTop += top + this.height - room;
    this.draw();
    return this.elements.get(this.keyOf(nth)) ?? null;
  }
}

/** Moves an element unless it is there: what is written anew is also laid out anew. */
function move(element, top) {
  if (element.top === top) return;
  element.top = top;
  element.style.transform = `translateY(${top}px)`;
}
