// Where this Longhouse is: at the top of its host, or below a path that a reverse proxy gives it.

const HERE = new URL(import.meta.url).pathname;
export const BASE = HERE.slice(0, HERE.lastIndexOf("/console/"));

/** The address of a path of ours, as the browser needs it. */
export const at = (path) => (path.startsWith("/") ? `${BASE}${path}` : path);

/** The path of ours at an address of the browser; one that is not below ours is taken as it is. */
export function pathOf(address) {
  if (!BASE || !`${address}/`.startsWith(`${BASE}/`)) return address;
  return address.slice(BASE.length) || "/";
}
