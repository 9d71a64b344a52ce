// A form made from a JSON Schema: it edits one value, says what is wrong where it is wrong, and hides no field.

import { fill, h } from "../dom.js";
import { visible, words } from "../format.js";

const LONG_TEXT = 2000;
let forms = 0;

/**
 * `schema` may hold references into `root`. `hints`: path → what the field means; `fixed`: paths that cannot be
 * changed; `left`: names at the top that are not shown. `onChange(value)` hears of every change.
 */
export function schemaForm(
  schema,
  { root = schema, value = {}, hints = {}, fixed = [], left = [], onChange = () => {} } = {},
) {
  const prefix = `form${(forms += 1)}`;
  let held = structuredClone(value);
  const node = h("div", { class: "schema-form" });

  function build() {
    const whole = resolved(schema, root);
    const fields = fieldsOf(
      whole,
      held,
      (changed) => {
        held = changed;
        onChange(held);
      },
      "",
      left,
    );
    fill(node, fields.length ? fields : h("p", { class: "soft" }, "It takes no arguments."));
  }

  function fieldsOf(object, current, change, path, leave = []) {
    const required = new Set(object.required ?? []);
    let now = isObject(current) ? current : {};
    return Object.entries(object.properties ?? {})
      .filter(([name]) => !leave.includes(name))
      .map(([name, one]) => {
        const put = (given) => {
          now = { ...now };
          if (given === undefined) delete now[name];
          else now[name] = given;
          change(now);
        };
        return field(name, resolved(one, root), now[name], put, path ? `${path}.${name}` : name, required.has(name));
      });
  }

  function field(name, one, current, put, path, isRequired) {
    if (one.type === "object" && one.properties) return group(name, one, current, put, path);
    const id = `${prefix}-${path}`;
    const hint = visible(hints[path] ?? one.description ?? "");
    const control = controlOf(one, current, put, { id, isRequired, path });
    control.id = id;
    control.disabled = fixed.includes(path);
    control.setAttribute("aria-describedby", `${id}-hint ${id}-error`);
    const isCheck = control.type === "checkbox";
    const label = h(
      "label",
      { for: id, class: isCheck ? "inline" : "" },
      isCheck ? control : null,
      h("span", {}, words(name), isRequired ? h("span", { class: "needed", title: "needed" }, " *") : null),
    );
    return h(
      "div",
      { class: ["field", isCheck && "check"], data: { path } },
      label,
      isCheck ? null : control,
      h(
        "p",
        { class: "soft small field-hint", id: `${id}-hint`, hidden: !hint && one.default === undefined },
        hint,
        defaultWords(one, hint),
      ),
      h("p", { class: "field-error", id: `${id}-error`, role: "alert", hidden: true }),
    );
  }

  function group(name, one, current, put, path) {
    const isTop = !path.includes(".");
    const details = h(
      "details",
      { class: "field-group", data: { path } },
      h("summary", {}, words(name)),
      h("p", { class: "field-error", role: "alert", hidden: true }),
      h("div", { class: "field-group-body" }, fieldsOf(one, current, put, path)),
    );
    details.open = isTop && OPEN_AT_FIRST.has(name);
    return details;
  }

  function showErrors(errors) {
    for (const one of node.querySelectorAll(".field-error")) one.hidden = true;
    for (const one of node.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
    const places = errors.map(({ path, message }) => mark(path, message)).filter(Boolean);
    places[0]?.querySelector("input, textarea, select, summary")?.focus();
    return places.length;
  }

  function mark(path, message) {
    for (let at = path; at; at = at.replace(/(\[\d+\]|\.?[^.[\]]+)$/, "")) {
      const place = node.querySelector(`[data-path="${CSS.escape(at)}"]`);
      if (!place) continue;
      const error = place.querySelector(".field-error");
      error.textContent = at === path ? message : `${path.slice(at.length).replace(/^\./, "")}: ${message}`;
      error.hidden = false;
      place.querySelector("input, textarea, select")?.setAttribute("aria-invalid", "true");
      for (let around = place.closest("details"); around; around = around.parentElement.closest("details"))
        around.open = true;
      return place;
    }
    return null;
  }

  build();
  return {
    node,
    value: () => held,
    setValue(given) {
      held = structuredClone(given);
      const open = new Set([...node.querySelectorAll("details[open]")].map((one) => one.dataset.path));
      build();
      for (const one of node.querySelectorAll("details")) one.open = open.has(one.dataset.path);
    },
    showErrors,
  };
}

const OPEN_AT_FIRST = new Set(["prompt_pack", "multi_agent_meta", "runtime_binding"]);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** A schema without references; one that may also be null is marked so. */
function resolved(schema, root) {
  let one = schema ?? {};
  for (let depth = 0; one.$ref && depth < 20; depth += 1) {
    const { $ref, ...more } = one;
    const target = $ref
      .replace(/^#\//, "")
      .split("/")
      .reduce((at, name) => at?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], root);
    one = { ...(target ?? {}), ...more };
  }
  const ways = one.anyOf ?? one.oneOf;
  if (one.allOf?.length === 1) return resolved({ ...one.allOf[0], ...without(one, "allOf") }, root);
  if (!ways) return Array.isArray(one.type) ? typesOf(one) : one;
  const some = ways.filter((way) => way.type !== "null");
  if (some.length !== 1) return without(one, "type");
  return {
    ...resolved(some[0], root),
    ...without(without(one, "anyOf"), "oneOf"),
    isNullable: some.length < ways.length,
  };
}

function typesOf(one) {
  const types = one.type.filter((type) => type !== "null");
  return { ...one, type: types.length === 1 ? types[0] : undefined, isNullable: types.length < one.type.length };
}

function without(object, name) {
  const { [name]: _, ...rest } = object;
  return rest;
}

function defaultWords(one, hint) {
  if (one.default === undefined || one.default === null || one.default === "" || isObject(one.default)) return "";
  const text = Array.isArray(one.default)
    ? one.default.filter((item) => typeof item === "string").join(", ")
    : String(one.default);
  if (!text || text.length > 60) return "";
  return `${hint ? (/[.!?。]$/.test(hint) ? " " : ". ") : ""}By default ${text}.`;
}

/** The control that fits a schema. What is left empty is left out, or null where that means something else. */
function controlOf(one, current, put, { isRequired }) {
  const nothing = one.isNullable && one.default !== undefined && one.default !== null ? null : undefined;
  if (one.enum)
    return choice(
      one.enum.map((item) => [item, String(item) || "none"]),
      current,
      put,
      { nothing, isRequired, fallback: one.default },
    );
  if (one.type === "boolean" && one.isNullable)
    return choice(
      [
        [true, "yes"],
        [false, "no"],
      ],
      current,
      put,
      { nothing },
    );
  if (one.type === "boolean") {
    return h("input", {
      type: "checkbox",
      checked: Boolean(current ?? one.default),
      onchange: (event) => put(event.target.checked),
    });
  }
  if (one.type === "integer" || one.type === "number") return number(one, current, put, nothing);
  if (one.type === "string") return text(one, current, put, { nothing, isRequired });
  if (one.type === "array" && one.items?.type === "string") return lines(current, put, one);
  return json(one, current, put, nothing);
}

function choice(options, current, put, { nothing, isRequired = false, fallback } = {}) {
  const chosen = current ?? (isRequired ? undefined : fallback);
  const element = h(
    "select",
    { onchange: () => put(element.value === "" ? nothing : options[Number(element.value)][0]) },
    h("option", { value: "" }, "not set"),
    options.map(([, label], nth) => h("option", { value: String(nth) }, visible(label))),
  );
  const at = options.findIndex(([item]) => item === chosen);
  element.value = at < 0 ? "" : String(at);
  return element;
}

function number(one, current, put, nothing) {
  return h("input", {
    type: "number",
    step: one.type === "integer" ? "1" : "any",
    min: one.minimum ?? null,
    max: one.maximum ?? null,
    value: current ?? "",
    placeholder: one.default ?? "",
    oninput: (event) => put(event.target.value === "" ? nothing : Number(event.target.value)),
  });
}

function text(one, current, put, { nothing, isRequired }) {
  const given = (event) =>
    put(event.target.value === "" && !isRequired && (nothing === null || !one.default) ? nothing : event.target.value);
  if ((one.maxLength ?? 0) <= LONG_TEXT && !String(current ?? "").includes("\n")) {
    return h("input", {
      type: "text",
      value: current ?? "",
      dir: "auto",
      placeholder: (one.examples ?? [])[0] ?? "",
      oninput: given,
    });
  }
  const rows = Math.min(14, Math.max(3, String(current ?? one.default ?? "").split("\n").length + 1));
  return h("textarea", { rows, value: current ?? "", placeholder: one.default ?? "", dir: "auto", oninput: given });
}

function lines(current, put, one) {
  const shown = (current ?? []).join("\n");
  return h("textarea", {
    rows: Math.min(6, Math.max(2, (current ?? []).length)),
    value: shown,
    placeholder: "One on each line",
    dir: "auto",
    oninput: (event) => {
      const found = event.target.value
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
      put(found.length || !one.isNullable ? found : undefined);
    },
  });
}

function json(one, current, put, nothing) {
  const element = h("textarea", {
    rows: 4,
    class: "mono",
    spellcheck: "false",
    value: current === undefined ? "" : JSON.stringify(current, null, 2),
    placeholder: "JSON",
    oninput: () => {
      try {
        put(element.value.trim() === "" ? nothing : JSON.parse(element.value));
        element.setCustomValidity("");
      } catch {
        element.setCustomValidity("This is not valid JSON yet.");
      }
    },
  });
  return element;
}

/** The fields that a refusal of the catalog names: `[{path, message}]`. */
export function errorsOf(error) {
  const text = error.message.replace(/^[^.:]*\. /, "").replace(/\.$/, "");
  const found = text
    .split(/; (?=[\w.[\]]+: )/)
    .map((part) => /^([\w.[\]]+): (.*)$/s.exec(part))
    .filter(Boolean);
  if (found.length) return found.map(([, path, message]) => ({ path, message }));
  return error.param ? [{ path: error.param, message: text }] : [];
}
