// Run by tests/widgets/test_scripts.py with `node --test`; VIEW_JS names the source.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const parts = process.env.VIEW_JS.replace(/[a-z]+\.js$/, "parts.js");
const source = readFileSync(parts, "utf8") + readFileSync(process.env.VIEW_JS, "utf8");
const view = await import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);
const { dated, described, extent, heights, turned } = view;

const page = (more = {}) =>
  ({ name: "late", epoch: 61, asked: 0, rows: Array(20).fill(["x"]), offset: 0, limit: 20, total: 3180, order: [], where: "", ...more });

test("a page says which rows it shows", () => {
  assert.equal(extent(page()), "rows 1 to 20 of 3,180");
  assert.equal(extent(page({ offset: 3160 })), "rows 3,161 to 3,180 of 3,180");
  assert.equal(extent(page({ rows: [["x"]], total: 1 })), "1 row");
  assert.equal(extent(page({ rows: [], total: 0 })), "no rows");
  assert.equal(extent(page({ rows: [], total: 0, where: "false" })), "no rows match");
});

test("a page is dated, and says how far it is behind", () => {
  assert.equal(dated(page(), 61, false), "epoch 61, the latest");
  assert.equal(dated(page(), 61, true), "epoch 61, the latest, frozen");
  assert.equal(dated(page(), 64, true), "epoch 61, 3 behind");
  assert.equal(dated(page(), 5, true), "epoch 61, which a rewind has undone");
  assert.equal(dated({ ...page(), stale: "stale: no such column" }, 64, false), "epoch 61, its last");
});

test("a click turns a column's order up, down and off", () => {
  assert.deepEqual(turned([], 1, false), [[1, false]]);
  assert.deepEqual(turned([[1, false]], 1, false), [[1, true]]);
  assert.deepEqual(turned([[1, true]], 1, false), []);
  assert.deepEqual(turned([[0, true]], 1, false), [[1, false]]);
});

test("with Shift the other columns stay as they are", () => {
  assert.deepEqual(turned([[0, true]], 1, true), [[0, true], [1, false]]);
  assert.deepEqual(turned([[0, true], [1, false]], 0, true), [[1, false]]);
  assert.deepEqual(turned([[0, false], [1, false]], 0, true), [[0, true], [1, false]]);
});

test("a summary is described in words", () => {
  const numbers = { nulls: 3, distinct: 1200, low: "1", high: "9", bars: [1], common: [] };
  assert.equal(described(numbers), "3 null, 1,200 distinct, 1 to 9");
  const texts = { nulls: 0, distinct: 2, low: null, high: null, bars: [], common: [["AA", 7], ["UA", 2]] };
  assert.equal(described(texts), "0 null, 2 distinct, AA: 7, UA: 2");
  assert.equal(described({ ...texts, distinct: null, common: [] }), "0 null");
});

test("what is there is seen, however little it is", () => {
  assert.deepEqual(heights([0, 1, 1000]), [0, 0.1, 1]);
  assert.deepEqual(heights([]), []);
  assert.deepEqual(heights([0]), [0]);
});
