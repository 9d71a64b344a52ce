// The page's title: how many questions wait, then what is shown.

let text = "";
let waiting = 0;

function paint() {
  document.title = `${waiting ? `(${waiting}) ` : ""}${text ? `${text} · ` : ""}Longhouse`;
}

export function setTitle(title) {
  text = title;
  const heading = document.querySelector("#top h1");
  if (heading) heading.textContent = title;
  paint();
}

export function setWaiting(number) {
  waiting = number;
  paint();
}
