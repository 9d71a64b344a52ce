// Documents: files that agents read. Upload, outline, pages.

import { ApiError, get, remove, withQuery } from "../api.js";
import { fill, h, icon, ICONS } from "../dom.js";
import { bytes, count, plainLine, visible } from "../format.js";
import { markdown } from "../markdown.js";
import { isAdmin } from "../me.js";
import { go, remember } from "../router.js";
import { walking } from "../shortcuts.js";
import { actButton, button, confirmed, empty, errorBox, fold, say, since, table } from "../ui.js";

const PATH = "/v1/documents";
const KINDS = ".md,.markdown,.html,.htm,.pdf,.docx,.txt";

const many = (number, name) => `${count(number)} ${name}${number === 1 ? "" : "s"}`;

export async function documentList() {
  const place = h("div", { class: "stack" });
  const uploads = h("div", { class: "stack uploads" });
  const picker = h("input", {
    type: "file",
    multiple: true,
    accept: KINDS,
    hidden: true,
    onchange: () => {
      // The list of the field is live: emptied below, it would be empty while the first file is sent.
      addAll([...picker.files]);
      picker.value = "";
    },
  });
  const shared = h("input", { type: "checkbox" });
  const drop = h(
    "div",
    {
      class: "drop",
      ondragover: (event) => {
        event.preventDefault();
        drop.classList.add("over");
      },
      ondragleave: () => drop.classList.remove("over"),
      ondrop: (event) => {
        event.preventDefault();
        drop.classList.remove("over");
        addAll([...event.dataTransfer.files]);
      },
    },
    icon(ICONS.documents),
    h(
      "div",
      {},
      h("strong", {}, "Drop files here"),
      h(
        "div",
        { class: "soft small" },
        "Markdown, HTML, PDF, DOCX and plain text. A changed file of the same name becomes its next version.",
      ),
    ),
    h("span", { class: "grow" }),
    isAdmin() ? h("label", { class: "inline" }, shared, "for all owners") : null,
    button("Choose files", () => picker.click(), { tone: "primary" }),
    picker,
  );
  let rows = [];
  let next = null;

  async function load(more = false) {
    const page = await get(PATH, { limit: 100, before: more ? next : null });
    rows = more ? [...rows, ...page.data] : page.data;
    next = page.has_more ? page.next : null;
    fill(
      place,
      rows.length ? listed() : empty("There is no document yet. Add one above; then ask the agent reader about it."),
    );
  }

  function listed() {
    return [
      table(
        [
          "Title",
          ["Format", "only-wide"],
          ["Pages", "number"],
          ["Passages", "number only-wide"],
          ["Size", "number only-wide"],
          ["Version", "number only-wide"],
          "Changed",
        ],
        rows.map((one) => [
          h(
            "div",
            {},
            h(
              "a",
              { href: `/documents/${encodeURIComponent(one.reg_id)}` },
              visible(plainLine(one.title, 90)) || visible(one.reg_id),
            ),
            one.shared ? h("span", { class: "chip" }, "shared") : null,
            h("div", { class: "soft small mono" }, visible(one.reg_id)),
          ),
          one.format,
          count(one.pages),
          count(one.chunks),
          bytes(one.size),
          count(one.version),
          since(one.changed_at),
        ]),
      ),
      next ? actButton("More", () => load(true)) : null,
    ];
  }

  async function addAll(files) {
    for (const file of files) await add(file);
    await load();
  }

  async function add(file) {
    const bar = h("progress", { max: 1, "aria-label": `Upload of ${file.name}` });
    bar.value = 0;
    const words = h("span", { class: "soft small" }, bytes(file.size));
    const row = h(
      "div",
      { class: "upload row" },
      h("span", { class: "upload-name", dir: "auto" }, visible(file.name)),
      bar,
      words,
    );
    uploads.prepend(row);
    try {
      const made = await send(file, shared.checked, (share) => {
        bar.value = share;
        words.textContent =
          share < 1
            ? `${Math.round(share * 100)} % of ${bytes(file.size)}`
            : "It is read now: outline, pages, passages…";
      });
      fill(
        row,
        h("span", { class: "mark good", "aria-hidden": "true" }),
        h("a", { href: `/documents/${encodeURIComponent(made.reg_id)}` }, visible(plainLine(made.title, 80))),
        h("span", { class: "soft small" }, CHANGES[made.change] ?? made.change, `, ${many(made.pages, "page")}`),
      );
    } catch (error) {
      fill(
        row,
        h("span", { class: "mark bad", "aria-hidden": "true" }),
        h("span", { class: "upload-name" }, visible(file.name)),
        h("span", { class: "field-error", role: "alert" }, error.message),
      );
    }
  }

  await load();
  return {
    name: "documents",
    title: "Documents",
    json: PATH,
    node: h("div", { class: "stack wide" }, drop, uploads, place),
    keys: {
      ...walking(() => [...place.querySelectorAll("tbody tr")].map(focusable)),
      u: ["Add files", () => picker.click()],
    },
  };
}

const CHANGES = { added: "added", changed: "a new version", unchanged: "known already, nothing changed" };

function focusable(row) {
  row.tabIndex = -1;
  return row;
}

/** Sends a file and tells how far it is: `fetch` cannot. */
function send(file, isShared, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", withQuery(PATH, { filename: file.name, shared: isShared ? "true" : "" }));
    request.setRequestHeader("content-type", "application/octet-stream");
    request.upload.onprogress = (event) => onProgress(event.lengthComputable ? event.loaded / event.total : 0);
    request.onerror = () => reject(new ApiError(0, { message: "The server cannot be reached; send the file again." }));
    request.onload = () => {
      const answer = parsed(request.responseText);
      if (request.status < 300) resolve(answer);
      else reject(new ApiError(request.status, answer?.error ?? { message: `The server answered ${request.status}.` }));
    };
    request.send(file);
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export async function oneDocument({ id }, query) {
  const path = `${PATH}/${encodeURIComponent(id)}`;
  const document_ = await get(path);
  const reader = new Reader(document_, path);
  await reader.open(Math.max(1, Number(query.page) || 1));
  return {
    name: "document",
    title: plainLine(document_.title, 80) || id,
    json: path,
    node: reader.node,
    tools: h("a", { class: "button plain", href: "/documents" }, "All documents"),
    keys: { j: ["Next page", () => reader.turn(1)], k: ["Previous page", () => reader.turn(-1)] },
  };
}

async function deleteDocument(one, path) {
  const text = "All its versions, pages and passages go. What agents have read of it stays in their conversations.";
  if (!(await confirmed(`Delete ${one.reg_id}?`, text, "Delete"))) return;
  await remove(withQuery(path, { shared: one.shared ? "true" : "" }));
  say("It is deleted.");
  go("/documents");
}

class Reader {
  constructor(one, path) {
    this.one = one;
    this.path = path;
    this.page = 1;
    this.text = h("article", { class: "page-text plain-text", tabindex: "0", "aria-live": "polite" });
    this.number = h("input", {
      type: "number",
      min: 1,
      max: one.pages,
      "aria-label": "Page",
      onchange: () => this.open(Number(this.number.value)),
    });
    this.outline = h(
      "nav",
      { class: "outline", "aria-label": "Outline" },
      one.toc.length ? this.entries(one.toc) : h("p", { class: "soft small" }, "It has no headings."),
    );
    this.node = h(
      "div",
      { class: "reader" },
      h("div", { class: "reader-side" }, this.facts(), h("h3", {}, "Outline"), this.outline),
      h(
        "section",
        { class: "card", "aria-label": "Page" },
        h(
          "div",
          { class: "row reader-bar" },
          button("Previous", () => this.turn(-1)),
          h("label", { class: "inline" }, "Page", this.number, `of ${count(one.pages)}`),
          button("Next", () => this.turn(1)),
        ),
        this.text,
      ),
    );
  }

  facts() {
    const { one } = this;
    return h(
      "div",
      { class: "stack" },
      h(
        "p",
        { class: "soft small" },
        `${one.format}, ${bytes(one.size)}, ${many(one.pages, "page")}, ${many(one.chunks, "passage")}. Version ${one.version}, changed `,
        since(one.changed_at),
        ` by ${plainLine(one.added_by, 40)}.`,
      ),
      one.shared ? h("p", { class: "small" }, h("span", { class: "chip" }, "shared"), " All owners see it.") : null,
      h(
        "div",
        { class: "row" },
        h("a", { class: "button", href: "/?agent=reader" }, icon(ICONS.chat), "Ask the reader"),
        actButton("Delete", () => deleteDocument(one, this.path), { tone: "danger" }),
      ),
      one.versions.length > 1
        ? fold(`${one.versions.length} versions`, () =>
            h(
              "ul",
              { class: "plain-list small" },
              one.versions.map((version) =>
                h(
                  "li",
                  {},
                  `Version ${version.version}, ${bytes(version.size)}, `,
                  since(version.added_at ?? version.created_at),
                ),
              ),
            ),
          )
        : null,
    );
  }

  entries(toc) {
    return h(
      "ul",
      {},
      toc.map((entry) =>
        h(
          "li",
          {},
          h(
            "button",
            {
              type: "button",
              class: "outline-entry",
              data: { page: entry.page },
              onclick: () => this.open(entry.page),
            },
            h(
              "span",
              { dir: "auto" },
              entry.section_number && !entry.title.startsWith(entry.section_number)
                ? `${visible(entry.section_number)} `
                : "",
              visible(entry.title),
            ),
            h("span", { class: "soft small" }, entry.page),
          ),
          entry.children.length ? this.entries(entry.children) : null,
        ),
      ),
    );
  }

  /** Formats with marks of their own are shown as pages; the words of others stay as they were read. */
  showText(text) {
    const isMarked = ["markdown", "html", "docx"].includes(this.one.format);
    this.text.classList.toggle("plain-text", !isMarked);
    fill(
      this.text,
      text.trim() ? (isMarked ? markdown(text) : visible(text)) : h("p", { class: "soft" }, "This page is empty."),
    );
  }

  turn(by) {
    return this.open(this.page + by);
  }

  async open(page) {
    const wanted = Math.max(1, Math.min(this.one.pages, Math.floor(page) || 1));
    try {
      const { pages } = await get(`${this.path}/pages`, { start: wanted });
      this.page = wanted;
      this.showText(pages[0]?.content ?? "");
    } catch (error) {
      fill(this.text, errorBox(error));
    }
    this.number.value = this.page;
    this.text.scrollTop = 0;
    remember({ page: this.page > 1 ? String(this.page) : "" });
    const entries = [...this.outline.querySelectorAll(".outline-entry")];
    const begun = entries.filter((one) => Number(one.dataset.page) < this.page).at(-1);
    const here = entries.find((one) => Number(one.dataset.page) === this.page) ?? begun;
    for (const one of entries) one.toggleAttribute("aria-current", one === here);
  }
}
