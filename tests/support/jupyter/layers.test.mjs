// Run by tests/widgets/test_scripts.py with `node --test`; VIEW_JS names the source.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const parts = process.env.VIEW_JS.replace(/[a-z]+\.js$/, "parts.js");
const source = readFileSync(parts, "utf8") + readFileSync(process.env.VIEW_JS, "utf8");
const view = await import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);
const { boundsOf, describe, epochs, heights, merges, reach, safest, scale, summary, ticks } = view;

const layer = (lower, upper, more = {}) =>
  ({ lower, upper, level: 1, rows: "4 rows", size: "9 B", bytes: 9, merging: false, ...more });
const place = (kind, epoch, name = kind) => ({ kind, name, epoch, note: "" });
const PLACES = [place("memory", 9), place("disk", 8), place("replica", 5, "replica 1"), place("replica", 2, "replica 2")];
const STATE = { stage: "s", name: "s", stages: [["s", "s"]], epoch: 9, time: "", why: "", last: 9, quorum: 2,
  layers: [layer(1, 3), layer(3, 6), layer(6, 9), layer(9, 10)], places: PLACES };

test("epochs keep their order and their ends, and young layers are seen beside old ones", () => {
  const at = scale([0, 10_000, 10_001, 10_002]);
  assert.equal(at(-1), 0);
  assert.equal(at(0), 0);
  assert.equal(at(10_002), 100);
  assert.equal(at(99_999), 100);
  const places = [0, 5_000, 10_000, 10_001, 10_002].map(at);
  assert.deepEqual(places, [...places].sort((a, b) => a - b));
  assert.ok(at(10_002) - at(10_001) > 5);
});

test("a trace without layers has an axis too", () => {
  const bounds = boundsOf({ ...STATE, layers: [], last: 0 });
  assert.deepEqual(scale(bounds)(0), 0);
  assert.deepEqual(ticks([0, 1], scale([0, 1])), [0, 1]);
});

test("a layer has the colour of the safest place that has all of it", () => {
  assert.deepEqual(STATE.layers.map((each) => safest(each, STATE)), ["copied", "some", "disk", "memory"]);
  assert.equal(safest(layer(1, 3), { ...STATE, places: PLACES.slice(0, 1) }), "memory");
});

test("a layer is described in words, with where it is", () => {
  assert.equal(describe(layer(3, 6), STATE), "epochs 3 to 5 · level 1 · 4 rows · 9 B · on memory, disk, replica 1");
  assert.match(describe(layer(9, 10, { merging: true }), STATE), /^epoch 9 .* on memory · being merged$/);
  assert.equal(epochs(1, 2), "epoch 1");
});

test("what was merged is told from two states of one stage", () => {
  const after = { ...STATE, layers: [layer(1, 9), layer(9, 10)] };
  assert.deepEqual(merges(STATE, after), [{ lower: 1, upper: 9, count: 3 }]);
  assert.deepEqual(merges(STATE, STATE), []);
  assert.deepEqual(merges({ ...STATE, stage: "t" }, after), []);
});

test("how far a place is, is told in epochs", () => {
  assert.equal(reach(PLACES[0], 9), "epoch 9");
  assert.equal(reach({ ...PLACES[3], note: "failing" }, 9), "epoch 2, 7 behind · failing");
  assert.equal(summary({ ...STATE, time: "12:00" }), "epoch 9 · 12:00 · 4 layers on 1 level");
});

test("a layer is as high as its bytes, within its lane", () => {
  const [low, high] = heights([layer(0, 1, { bytes: 10 }), layer(1, 2, { bytes: 1e9 })]);
  assert.ok(low < high);
  assert.ok(low >= 10 && high <= 26);
});

test("the axis names its ends, and no more than there is room for", () => {
  const ends = [...Array(200).keys()];
  const chosen = ticks(ends, scale(ends));
  assert.equal(chosen[0], 0);
  assert.equal(chosen[chosen.length - 1], 199);
  assert.ok(chosen.length < 20);
});
