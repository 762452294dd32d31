// @ts-check
// What every view is made of: elements, counts in words, and whether its kernel answers. It stands
// before the script of each view, in one source with it.

/** How long an answer is waited for, in ms: the kernel gives one at once, also while a cell runs. */
const PATIENCE = 10_000;

/** A noun as it stands after a number: `row`, `rows`. @param {number} number @param {string} one */
export const noun = (number, one) => (Math.abs(number) === 1 ? one : `${one}s`);

/** Counts a noun: `1 row`, `336,776 rows`. @param {number} number @param {string} one */
export const plural = (number, one) => `${number.toLocaleString("en")} ${noun(number, one)}`;

/**
 * @param {string} tag
 * @param {Record<string, string>=} attributes
 * @param {string=} text
 */
export function make(tag, attributes = {}, text = "") {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  return node;
}

/** What is said of a kernel that is there no more. @param {string} again what to do then */
export const gone = (again) =>
  `the kernel was restarted or has ended, and this view is no longer live; ${again}`;

/** What is said of a kernel that does not answer. @param {string} again what to do then */
export const silent = (again) => `no answer: the kernel is busy; if it was restarted, ${again}`;

/**
 * Sends what a view asks, and says when nobody is there to answer: at once if the front end knows
 * that the kernel is gone, else when an answer has not come for a while.
 * @param {any} model
 * @param {(said: string) => void} say told what is wrong; "": nothing any more
 */
export function attend(model, say) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let patience;
  let said = "";
  /** @param {string} text */
  const tell = (text) => {
    clearTimeout(patience);
    patience = undefined;
    if (text === said) return;
    said = text;
    say(text);
  };
  const lost = () => tell(gone(model.get("again")));
  const answered = () => tell("");
  /** @param {Record<string, any>} message */
  const send = (message) => {
    try {
      model.send(message);
      return true;
    } catch {
      lost();
      return false;
    }
  };
  // The front end has lost the kernel, or has it again: only an answer tells which.
  const changed = () => {
    lost();
    send({});
  };
  /** @param {Record<string, any>} message */
  const ask = (message) => {
    if (send(message)) patience ??= setTimeout(() => tell(silent(model.get("again"))), PATIENCE);
  };
  model.on("msg:custom", answered);
  model.on("change", answered);
  model.on("comm_live_update", changed);
  // Clicks are handled where the kernel has answered before: while a cell runs, too.
  send({});
  const stop = () => {
    clearTimeout(patience);
    model.off("msg:custom", answered);
    model.off("change", answered);
    model.off("comm_live_update", changed);
  };
  return { ask, stop };
}
