// The versions of a tool or a template: who published each, what changed, and one click to make it the active one.

import { get, post } from "../api.js";
import { fill, h } from "../dom.js";
import { plainLine } from "../format.js";
import { actButton, badge, button, empty, say, since } from "../ui.js";
import { diffView } from "./diff_view.js";

/** `base`: `/admin/templates/name`; `changed()` is called after a version became active. `tryVersion(n)` may be null. */
export async function versionList(base, { changed, tryVersion = null }) {
  const { data, has_more: hasMore } = await get(`${base}/versions`, { limit: 100 });
  if (!data.length) return empty("There are no versions.");
  const compared = h("div", { class: "card diff-place" });
  const rows = data.map((one, nth) => row(one, data[nth + 1]));

  function row(one, before) {
    const element = h(
      "li",
      { class: "version", tabindex: "-1" },
      h(
        "div",
        { class: "row" },
        h("strong", {}, `Version ${one.version}`),
        one.is_active ? badge("active", "good") : one.version > activeVersion(data) ? badge("draft", "wait") : null,
      ),
      h("div", { class: "soft small" }, since(one.published_at), ` by ${plainLine(one.published_by, 40)}`),
      h(
        "div",
        { class: "row" },
        before ? button("What changed", () => compare(one.version, before.version, element), { tone: "small" }) : null,
        tryVersion ? button("Try", () => tryVersion(one.version), { tone: "small" }) : null,
        one.is_active ? null : actButton("Activate", () => activate(one.version), { tone: "small" }),
      ),
    );
    return element;
  }

  async function compare(to, from, element) {
    for (const one of rows) one.classList.toggle("chosen", one === element);
    fill(compared, h("p", { class: "soft" }, "Comparing…"));
    const found = await get(`${base}/diff`, { from, to }).catch((error) => error);
    fill(
      compared,
      h("h3", {}, `From version ${from} to ${to}`),
      found instanceof Error ? h("p", { role: "alert" }, found.message) : diffView(found.differences),
    );
  }

  async function activate(version) {
    await post(`${base}/activate`, { version });
    say(`Version ${version} is active. Running turns keep the version they began with.`);
    changed();
  }

  if (data.length > 1) compare(data[0].version, data[1].version, rows[0]);
  else fill(compared, h("p", { class: "soft" }, "There is one version; a second one is compared with it here."));
  return h(
    "div",
    { class: "versions" },
    h(
      "div",
      {},
      h("ol", { class: "version-list" }, rows),
      hasMore ? h("p", { class: "soft small" }, "Older versions are in the JSON.") : null,
    ),
    compared,
  );
}

const activeVersion = (versions) => versions.find((one) => one.is_active)?.version ?? Infinity;
