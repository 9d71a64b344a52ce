// Signing in: a key pasted once becomes the browser's cookie.

import { at, pathOf } from "../base.js";
import { h } from "../dom.js";
import * as identity from "../me.js";

/** Where the person wanted to go: this very address, or what `/sign-in?to=…` names, if it is of this server. */
function destination({ to = "/" }) {
  if (pathOf(location.pathname) !== "/sign-in") return location.href;
  const address = URL.canParse(at(to), location.origin) ? new URL(at(to), location.origin) : null;
  // A blob: is of this origin too, and no page of ours.
  const isOurs = address?.protocol === location.protocol && address.origin === location.origin && pathOf(address.pathname) !== "/sign-in";
  return isOurs ? address.href : at("/");
}

export async function signIn(parameters, query) {
  const who = identity.me() ?? await identity.load();
  const target = destination(query);
  const refusal = h("p", { id: "refusal", role: "alert", class: "message bad", hidden: true });
  const field = h("input", {
    id: "key", name: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true,
    placeholder: "lh_…", "aria-describedby": "key-help refusal",
  });
  const send = h("button", { type: "submit", class: "button primary" }, "Sign in");

  async function submit(event) {
    event.preventDefault();
    send.disabled = true;
    refusal.hidden = true;
    try {
      await identity.signIn(field.value.trim());
      // Loaded anew: nothing of whoever was signed in before stays in this page.
      location.replace(target);
    } catch (error) {
      refusal.textContent = error.message;
      refusal.hidden = false;
      field.select();
    } finally {
      send.disabled = false;
    }
  }

  const form = h("form", { class: "card stack", onsubmit: submit },
    h("label", { for: "key" }, "API key", field),
    refusal,
    h("div", { class: "row end" }, send),
    h("p", { id: "key-help", class: "soft small" },
      "The key is sent once. This browser then keeps a cookie that ends when you sign out, when the key is revoked, and after 7 days. ",
      "A key is made with ", h("code", {}, "longhouse keys create"), "."));
  const already = h("div", { class: "empty" },
    h("p", {}, who.is_open ? "No keys are set here: there is nothing to sign in to." : `You are signed in as ${who.owner}.`),
    h("a", { href: target }, "Go on"));
  // Once the screen is shown: an element that is not on the page cannot take the focus.
  document.addEventListener("shown", () => field.focus(), { once: true });
  return { name: "sign-in", title: "Sign in", node: h("div", { class: "sign-in" }, who.owner ? already : form) };
}
