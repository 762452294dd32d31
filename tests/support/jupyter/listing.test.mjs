// Run by tests/widgets/test_scripts.py with `node --test`; VIEW_JS names the source.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const parts = process.env.VIEW_JS.replace(/[a-z]+\.js$/, "parts.js");
const source = readFileSync(parts, "utf8") + readFileSync(process.env.VIEW_JS, "utf8");
const { dated, rowsOf, short } = await import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);

test("what stands after a number of rows is as many", () => {
  assert.deepEqual(["0", "1", "2", "1,001"].map(rowsOf), ["rows", "row", "rows", "rows"]);
});

test("a list is dated, and names its branch", () => {
  assert.equal(dated({ name: "", epoch: 3, time: "12:00" }), "epoch 3 · 12:00");
  assert.equal(dated({ name: "what_if", epoch: 0, time: "" }), "branch what_if · epoch 0");
});

test("a long path is told by its end", () => {
  assert.equal(short("/a/b/c/.nosync/flights"), "…/c/.nosync/flights");
  assert.equal(short("/a/log"), "/a/log");
});
