// What a page can do better with a script; without one everything is still there to be read, marked and opened.
"use strict";
async function copy(source) {
  try {
    await navigator.clipboard.writeText(source.textContent);
  } catch { // a page that did not come over https may not write the clipboard itself
    getSelection().selectAllChildren(source);
    document.execCommand("copy");
  }
}
function button(text, label, act) {
  const made = Object.assign(document.createElement("button"), { type: "button", textContent: text });
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", () => act(made));
  return made;
}
for (const box of document.querySelectorAll("[data-copy]")) {
  box.append(button("Copy", "Copy " + box.dataset.copy, async (made) => {
    await copy(box.querySelector("[data-text]"));
    made.textContent = "Copied";
    setTimeout(() => { made.textContent = "Copy"; }, 2000);
  }));
}
const sources = document.querySelectorAll("details.source");
const nav = document.querySelector("header nav");
if (nav && sources.length) {
  nav.append(button("Show all code", "", (made) => {
    const open = made.textContent === "Show all code";
    for (const source of sources) source.open = open;
    made.textContent = open ? "Hide all code" : "Show all code";
  }));
}
