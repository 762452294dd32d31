// Run by tests/widgets/test_scripts.py with `node --test`; VIEW_JS names the source.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const parts = process.env.VIEW_JS.replace(/[a-z]+\.js$/, "parts.js");
const source = readFileSync(parts, "utf8") + readFileSync(process.env.VIEW_JS, "utf8");
const view = await import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);
const { HEIGHT, WIDTH, chosenText, curve, describe, layout, neighbour, ranks } = view;

const node = (name, ...reads) => ({ name, reads });
const GRAPH = [
  node("flights"), node("carriers"), node("late", "flights"), node("counts", "late"),
  node("named", "counts", "carriers"), node("airports", "flights"),
];

test("a node stands behind all that it reads", () => {
  const rank = ranks(GRAPH);
  assert.deepEqual(["flights", "carriers", "late", "counts", "named", "airports"].map((n) => rank.get(n)), [0, 0, 1, 2, 3, 1]);
});

test("what reads itself, or what is not there, or in a circle, ends", () => {
  const rank = ranks([node("a", "a"), node("b", "gone"), node("c", "d"), node("d", "c")]);
  assert.equal(rank.get("a"), 0);
  assert.equal(rank.get("b"), 0);
  assert.ok(rank.get("c") !== rank.get("d"));
  assert.equal(layout([node("c", "d"), node("d", "c")]).points.size, 2);
});

test("no box covers another one, and all are inside", () => {
  const { points, width, height } = layout(GRAPH);
  const boxes = GRAPH.map(({ name }) => points.get(name));
  for (const [i, one] of boxes.entries()) {
    assert.ok(one.x >= 0 && one.x + WIDTH <= width);
    assert.ok(one.y - HEIGHT / 2 >= -0.01 && one.y + HEIGHT / 2 <= height + 0.01);
    for (const other of boxes.slice(i + 1))
      assert.ok(Math.abs(one.x - other.x) >= WIDTH || Math.abs(one.y - other.y) >= HEIGHT);
  }
});

test("an edge over several ranks goes round what lies between", () => {
  const { points, lines } = layout(GRAPH);
  const line = lines.find(({ from, to }) => from === "carriers" && to === "named");
  assert.equal(line.points.length, 4);
  const between = points.get("counts");
  assert.ok(Math.abs(line.points[2].y - between.y) > HEIGHT / 2);
  assert.equal(lines.length, 5);
  assert.match(curve(line.points), /^M208,.*C.*H.*C/);
});

test("a hundred stages are laid out, and none at all", () => {
  const many = [...Array(100).keys()].map((i) => node(`s${i}`, ...(i ? [`s${i - 1}`, `s${Math.floor(i / 2)}`] : [])));
  assert.equal(layout(many).lines.length, 198);
  const none = layout([]);
  assert.deepEqual([none.width, none.height, none.lines], [0, 0, []]);
});

test("arrow keys lead to the nearest node in their direction", () => {
  const { points } = layout(GRAPH);
  const names = GRAPH.map(({ name }) => name);
  assert.equal(neighbour(points, names, "named", "ArrowLeft"), "counts");
  assert.ok(["late", "airports"].includes(neighbour(points, names, "flights", "ArrowRight")));
  const [first, second] = points.get("flights").y < points.get("carriers").y ? ["flights", "carriers"] : ["carriers", "flights"];
  assert.equal(neighbour(points, names, first, "ArrowDown"), second);
  assert.equal(neighbour(points, names, first, "ArrowUp"), null);
  assert.equal(neighbour(points, names, "flights", "Enter"), null);
  assert.equal(neighbour(points, names, "gone", "ArrowLeft"), null);
});

test("a node says in words what it shows", () => {
  const stage = { name: "late", text: "late", kind: "stage", version: 2, reads: ["flights"], detail: "3 rows · 9 B",
    ran: "1 ms · in process", levels: [["memory", 4], ["disk", 3]], after: [["kernel", 4], ["power", 3]], why: "stopped",
    columns: [{ name: "n", type: "bigint", right: true }] };
  assert.equal(describe(stage), "stage late, 3 rows · 9 B, 1 ms · in process, memory epoch 4, disk epoch 3, reads flights, stopped");
  assert.equal(chosenText(stage), "late: n bigint · after a failure it would be at: kernel 4, power 3");
  assert.equal(chosenText(undefined), "");
});
