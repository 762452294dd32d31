// What can be done at the epoch that is shown: fork a branch there, or go back to it; and for a stage
// that was defined late: compute what it was before. The kernel does it and says in a line what was done. A part of travel.js, which it stands before.

/** What the button says; going back asks once more. @param {number} epoch @param {number | null} sure */
export function rewindLabel(epoch, sure) {
  return sure === epoch ? `Rewind to epoch ${epoch}: sure?` : "Rewind here";
}

/**
 * Adds the controls; none where nobody can do it.
 * @param {any} model @param {HTMLElement} root @param {AbortSignal} signal
 */
function buildForks(model, root, signal) {
  const bar = document.createElement("div");
  bar.className = "nosync-bar nosync-forks";
  bar.hidden = !model.get("forks");
  const name = document.createElement("input");
  name.type = "text";
  name.placeholder = "branch name";
  name.setAttribute("aria-label", "name of the branch that is forked here");
  const branch = document.createElement("button");
  branch.textContent = "Branch here";
  branch.title = "fork a branch at this epoch, as %dd branch NAME --at EPOCH does";
  const rewind = document.createElement("button");
  rewind.title = "rewind to this epoch, as %dd rewind EPOCH does; the undone epochs remain in a branch";
  const past = document.createElement("button");
  past.textContent = "Compute its history";
  past.title = "computes the stage from the first epoch of its inputs, as %%dd --replay does";
  const said = document.createElement("span");
  said.setAttribute("aria-live", "polite"); // the status is the line of the epoch
  bar.append(name, branch, rewind, past, said);
  root.append(bar);
  for (const control of [name, branch, rewind, past]) {
    control.setAttribute("data-lm-suppress-shortcuts", "true");
    if (control !== name) control.setAttribute("type", "button");
  }
  /** @type {number | null} */
  let sure = null;
  const epoch = () => model.get("page").epoch;
  const label = () => { rewind.textContent = rewindLabel(epoch(), sure); };
  const fork = () => model.send({ branch: name.value, at: epoch() });
  branch.addEventListener("click", fork, { signal });
  name.addEventListener("keydown", (event) => { if (event.key === "Enter") fork(); }, { signal });
  rewind.addEventListener("click", () => {
    if (sure === epoch()) {
      model.send({ rewind: sure });
      sure = null;
    } else sure = epoch();
    label();
  }, { signal });
  past.addEventListener("click", () => {
    past.disabled = true;
    model.send({ replay: true });
  }, { signal });
  const offer = () => { past.hidden = !model.get("course").past; };
  const say = () => {
    past.disabled = false;
    const done = model.get("said");
    said.textContent = done.text ?? "";
    said.className = done.bad ? "nosync-error" : "";
    if (!done.bad) name.value = "";
  };
  const moved = () => {
    if (sure !== epoch()) sure = null;
    label();
  };
  model.on("change:course", offer);
  model.on("change:said", say);
  model.on("change:page", moved);
  signal.addEventListener("abort", () => {
    model.off("change:course", offer);
    model.off("change:said", say);
    model.off("change:page", moved);
  });
  label();
  offer();
}

