// Run by tests/widgets/test_scripts.py with `node --test`; VIEW_JS names the source.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const read = (name) => readFileSync(process.env.VIEW_JS.replace("travel.js", name), "utf8");
const source = read("parts.js") + read("course.js") + read("forks.js") + read("travel.js");
const view = await import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);
const { across, count, epochAt, isShort, pace, path, plural, positionOf, rewindLabel, sign, status, told } = view;

const THINNED = [[0, 32, 16], [40, 40, 1], [43, 46, 1]];
const PAGE = { epoch: 45, before: 44, columns: [], rows: [], more: false, fresh: [], changes: [],
  changes_more: false, added: 1, removed: 1200 };

test("positions and epochs are inverse to each other over thinned ranges", () => {
  assert.equal(count(THINNED), 8);
  const epochs = [...Array(8).keys()].map((position) => epochAt(THINNED, position));
  assert.deepEqual(epochs, [0, 16, 32, 40, 43, 44, 45, 46]);
  epochs.forEach((epoch, position) => assert.equal(positionOf(THINNED, epoch), position));
});

test("an epoch that is gone stands at the one before it", () => {
  assert.equal(positionOf(THINNED, 20), 1);
  assert.equal(positionOf(THINNED, 42), 3);
  assert.equal(positionOf(THINNED, 99), 7);
  assert.equal(positionOf([[5, 9, 1]], 2), 0);
});

test("no epochs at all is a slider with one place", () => {
  assert.equal(count([]), 0);
  assert.equal(epochAt([], 3), 0);
  assert.equal(positionOf([], 3), 0);
});

test("positions beyond the ends are the ends", () => {
  assert.equal(epochAt(THINNED, -1), 0);
  assert.equal(epochAt(THINNED, 100), 46);
});

test("the status names epoch, label and changes in words", () => {
  assert.equal(status({ ...PAGE, label: "May" }, THINNED),
    "epoch 45 of 46 · May · 1 row added, 1,200 removed");
  assert.equal(status({ ...PAGE, epoch: 32, before: 16 }, THINNED),
    "epoch 32 of 46 · epochs 17 to 32 are retained as one · 1 row added, 1,200 removed");
  assert.match(status({ ...PAGE, epoch: 46 }, THINNED), /^epoch 46, the latest/);
  assert.equal(status({ ...PAGE, error: "gone" }, THINNED), "epoch 45: gone");
});

test("dates, numbers and words stay in one line, and so does what they became", () => {
  for (const item of ["2024-02-08", null, "", "{'k': 4}", ["2024-02-08", "2024-02-09"]]) assert.ok(isShort(item));
  for (const item of ["a long text that goes on for a while", ["2024-02-08 10:00", "2024-02-08 11:30"]]) assert.ok(!isShort(item));
});

test("signs do not rely on colour", () => {
  assert.deepEqual([1, -1, 3, -2].map(sign), ["+", "−", "+ ×3", "− ×2"]);
  assert.equal(plural(1, "row"), "1 row");
  assert.equal(plural(336776, "row"), "336,776 rows");
});

test("the view offers render and nothing touches the page on import", () => {
  assert.equal(typeof view.default.render, "function");
});

test("play has a choice of speed, and never asks more than ten times a second", () => {
  assert.deepEqual(pace("1 a second", 336), { pause: 1000, stride: 1 });
  assert.deepEqual(pace("10 a second", 336), { pause: 100, stride: 1 });
  const { pause, stride } = pace("all in 20 s", 336);
  assert.ok(pause >= 100 && (Math.ceil(336 / stride) * pause) / 1000 <= 21);
  assert.deepEqual(pace("all in 20 s", 0), { pause: 1000, stride: 1 });
});

test("rows that changed are counted as such, not as one that came and one that went", () => {
  const page = { ...PAGE, added: 3, removed: 1, changes: [[0, ["a", ["1", "2"]], 1], [2, ["b", "3"]]] };
  assert.match(status(page, THINNED), /1 row changed · 2 rows added, 0 removed$/);
  assert.equal(sign(0, 1), "→");
  assert.equal(sign(0, 4), "→ ×4");
});

test("the line of rows goes in steps from epoch to epoch, in words as well", () => {
  const course = { points: [[0, 0], [1, 50], [2, 100]], every: 4, of: "rows", columns: [], marks: [], past: "" };
  assert.equal(across(0, 2), 4);
  assert.equal(across(2, 2), 596);
  assert.equal(path(course.points, (epoch) => epoch, 2), "M4 50H300V28H596V6");
  assert.equal(told(course), "rows over epochs, one of 4 epochs: 0 at epoch 0, 0 to 100, now 100");
  assert.equal(path([], (epoch) => epoch, 0), "");
  assert.equal(path([[0, -50], [1, 0], [2, 50]], (epoch) => epoch, 2), "M4 50H300V28H596V6");
  assert.match(told({ ...course, of: "sum of delay", points: [[0, -0.5], [1, 1e6]] }),
    /^sum of delay over epochs, one of 4 epochs: -0\.5 at epoch 0, -0\.5 to 1,000,000, now 1,000,000$/);
});

test("going back asks once more, for the epoch that is shown", () => {
  assert.equal(rewindLabel(5, null), "Rewind here");
  assert.equal(rewindLabel(5, 5), "Rewind to epoch 5: sure?");
  assert.equal(rewindLabel(6, 5), "Rewind here");
});
