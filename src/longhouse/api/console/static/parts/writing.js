// A reply while it is written: what is finished of it stays in the page, and only its last part is drawn anew.

import { fill, h, icon, ICONS } from "../dom.js";
import { straight } from "../format.js";
import { markdown } from "../markdown.js";

export class WritingText {
  constructor() {
    this.settled = h("div", { class: "settled" });
    this.last = h("div", { class: "last" });
    this.thought = h("div", { class: "writing-thought", hidden: true });
    this.node = h("div", { class: "entry reply writing", hidden: true }, this.thought, this.settled, this.last);
    this.upto = 0;
    this.text = "";
  }

  show(draft) {
    const content = draft?.content ?? "";
    this.node.hidden = !content && !draft?.reasoning;
    if (!content.startsWith(this.text) || !content) this.clear();
    this.showThought(draft?.reasoning ?? "", Boolean(content));
    if (content === this.text) return;
    this.text = content;
    this.settle();
    fill(this.last, markdown(content.slice(this.upto)));
  }

  clear() {
    fill(this.settled);
    fill(this.last);
    this.upto = 0;
    this.text = "";
  }

  /** Moves whole paragraphs out of what is drawn anew. A fence that is open keeps everything behind it. */
  settle() {
    const rest = this.text.slice(this.upto);
    const cut = lastBreak(rest);
    if (cut <= 0) return;
    this.settled.append(...markdown(rest.slice(0, cut)).childNodes);
    this.upto += cut;
  }

  /** The end of what the model thinks, until it begins to speak. */
  showThought(reasoning, isSpeaking) {
    const isShown = Boolean(reasoning) && !isSpeaking;
    this.thought.hidden = !isShown;
    if (isShown) fill(this.thought, icon(ICONS.thought), h("span", { dir: "auto" }, straight(reasoning.slice(-400))));
  }
}

/** Where the last paragraph begins that may still change; 0 if nothing is finished. */
function lastBreak(text) {
  let isFenced = false;
  let cut = 0;
  let at = 0;
  // The last line is still being written: that it is empty says nothing.
  for (const line of text.split("\n").slice(0, -1)) {
    if (/^ {0,3}(```|~~~)/.test(line)) isFenced = !isFenced;
    else if (!line.trim() && !isFenced && at > 0) cut = at;
    at += line.length + 1;
  }
  return cut;
}
