// Where a message is written: its text, images, the agent it is for, Send and Stop.

import { fill, h, icon, ICONS } from "../dom.js";
import { bytes } from "../format.js";
import { say } from "../ui.js";
import { agentPicker } from "./agent_picker.js";

const TYPES = "image/png,image/jpeg,image/webp,image/gif";
/** A request has at most 8 MB, and an image grows by a third on its way. */
const LARGEST = 5_500_000;

/**
 * `onSend(text, images)` resolves once the message is taken, or throws: then the text is there again.
 * `onStop()` ends the running turn.
 */
export function composer({ onSend, onStop, agents, chosen }) {
  let images = [];
  const text = h("textarea", { rows: "1", dir: "auto", "aria-label": "Message", placeholder: "Write a message…", oninput: grow, onkeydown: key, onpaste: paste });
  const shelf = h("div", { class: "shelf", hidden: true });
  const file = h("input", { type: "file", accept: TYPES, multiple: true, hidden: true, onchange: () => {
    // The list of the field is live: it is emptied below.
    addImages([...file.files]);
    file.value = "";
  } });
  const attach = h("button", { type: "button", class: "button plain round", "aria-label": "Add images", title: "Add images", onclick: () => file.click() }, icon(ICONS.image));
  const send = h("button", { type: "submit", class: "button primary round", "aria-label": "Send", title: "Send (Enter)" }, icon(ICONS.send));
  const stop = h("button", { type: "button", class: "button round stop", "aria-label": "Stop", title: "Stop (Escape)", hidden: true, onclick: () => onStop() }, icon(ICONS.stop));
  const picker = agents ? agentPicker(agents, chosen) : null;
  const place = h("div", { class: "composer-agent" }, picker?.node);
  const form = h("form", { class: "composer", onsubmit: submit, ondragover: (event) => event.preventDefault(), ondrop: drop },
    shelf, text, h("div", { class: "composer-row" }, attach, file, place, h("span", { class: "grow" }), stop, send));

  function grow() {
    text.style.height = "auto";
    text.style.height = `${Math.min(text.scrollHeight + 2, innerHeight * 0.4)}px`;
  }

  function key(event) {
    if (event.key === "Escape" && !stop.hidden) onStop();
    // On a telephone Enter begins a new line, as people expect there.
    const isPhone = matchMedia("(pointer: coarse)").matches;
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || isPhone) return;
    event.preventDefault();
    form.requestSubmit();
  }

  function paste(event) {
    const files = [...event.clipboardData.files].filter((one) => one.type.startsWith("image/"));
    if (!files.length) return;
    event.preventDefault();
    addImages(files);
  }

  function drop(event) {
    event.preventDefault();
    addImages([...event.dataTransfer.files]);
  }

  async function addImages(files) {
    for (const one of files) {
      const total = images.reduce((sum, image) => sum + image.size, one.size);
      if (!TYPES.split(",").includes(one.type)) say(`${one.name} is no image that can be sent: PNG, JPEG, WebP or GIF.`, "bad");
      else if (total > LARGEST) say(`The images have ${bytes(total)} together; ${bytes(LARGEST)} can be sent.`, "bad");
      else images.push({ size: one.size, name: one.name, data: await dataUrl(one), preview: URL.createObjectURL(one) });
    }
    showShelf();
  }

  function showShelf() {
    shelf.hidden = images.length === 0;
    fill(shelf, images.map((one) => h("figure", { class: "thumb" }, h("img", { src: one.preview, alt: one.name }),
      h("button", { type: "button", class: "button round small", "aria-label": `Remove ${one.name}`, onclick: () => {
        images = images.filter((other) => other !== one);
        showShelf();
      } }, icon(ICONS.close)))));
  }

  async function submit(event) {
    event.preventDefault();
    const [written, sent] = [text.value, images];
    if (!written.trim() && !sent.length) return;
    send.disabled = true;
    set("", []);
    try {
      await onSend(written, sent, picker?.value() ?? null);
    } catch (error) {
      if (!text.value) set(written, sent);
      say(error.message, "bad");
    } finally {
      send.disabled = false;
    }
  }

  function set(written, kept) {
    text.value = written;
    images = kept;
    showShelf();
    grow();
  }

  return {
    node: form,
    focus: () => text.focus(),
    write: (written, agent) => {
      set(written, []);
      if (agent) picker?.choose(agent);
    },
    submit: () => form.requestSubmit(),
    setRunning: (isRunning) => { stop.hidden = !isRunning; },
    setPlaceholder: (words) => { text.placeholder = words; },
    /** Names the agent of a conversation that has begun. */
    setAgent: (name) => fill(place, h("span", { class: "composer-name" }, icon(ICONS.agent), name)),
    /** Says why nothing can be written here. */
    close: (...words) => {
      fill(form, h("p", { class: "soft composer-closed" }, words));
    },
  };
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}
