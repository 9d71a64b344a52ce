// A search box that hides the cards whose words do not fit, at once and without the server.

import { h } from "../dom.js";

/** `cards()` returns the elements; each has its words in `data-words`. */
export function filterBox(label, cards, none) {
  const input = h("input", {
    type: "search",
    placeholder: label,
    "aria-label": label,
    data: { search: "" },
    oninput: () => apply(),
  });
  function apply() {
    const asked = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const card of cards()) {
      card.hidden = !asked.every((word) => card.dataset.words.includes(word));
      if (!card.hidden) shown += 1;
    }
    none.hidden = shown > 0;
  }
  return { input, apply };
}

/** Every page of a list, up to `most` rows. */
export async function wholeList(read, most = 1000) {
  const rows = [];
  let before = null;
  do {
    const page = await read(before);
    rows.push(...page.data);
    before = page.has_more ? page.next : null;
  } while (before && rows.length < most);
  return rows;
}
