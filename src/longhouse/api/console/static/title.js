// The page's title: how many questions wait, then what is shown.

import { straight } from "./format.js";

let text = "";
let waiting = 0;

function paint() {
  document.title = `${waiting ? `(${waiting}) ` : ""}${text ? `${text} · ` : ""}Longhouse`;
}

export function setTitle(title) {
  text = straight(title);
  const heading = document.querySelector("#top h1");
  if (heading) heading.textContent = text;
  paint();
}

export function setWaiting(number) {
  waiting = number;
  paint();
}
