// Who looks at the console, and where what they may see is read.

import { get, send } from "./api.js";

/** `{owner, role, key, is_open, is_demo, model, address, version}`; see `GET /console/session`. */
let known = null;

export async function load() {
  known = await get("/console/session");
  return known;
}

export const me = () => known;
export const isAdmin = () => known?.role === "admin";

/** Exchanges a key for the browser's cookie. */
export async function signIn(key) {
  known = await send("POST", "/console/session", { key });
  return known;
}

export async function signOut() {
  await send("DELETE", "/console/session");
  known = null;
}

/** The address of a session's routes: an admin may read every owner's. */
export function sessionPath(id, below = "") {
  const base = isAdmin() ? "/admin/sessions" : "/v1/sessions";
  return `${base}/${encodeURIComponent(id)}${below}`;
}

export const sessionsPath = () => (isAdmin() ? "/admin/sessions" : "/v1/sessions");
export const questionsPath = () => (isAdmin() ? "/admin/questions" : "/v1/questions");
