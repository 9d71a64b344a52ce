// A secret that is shown once.

import { h } from "../dom.js";
import { button, code, dialog } from "../ui.js";

/** `kept`: what becomes of it here, and what to do if it is lost. */
export function showSecret(title, secret, label, kept) {
  return dialog(title, (close) => [
    h("p", {}, `This is shown once. ${kept}`),
    code(secret, label),
    h(
      "div",
      { class: "row end" },
      button("I have it", () => close(true), { tone: "primary" }),
    ),
  ]);
}
