// Run by tests/widgets/test_scripts.py with `node --test`; VIEW_JS names the source.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const source = readFileSync(process.env.VIEW_JS, "utf8");
const view = await import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);
const { attend, gone, plural, silent } = view;

/** A model whose kernel answers when it is told to. */
function stage({ sends = () => {} } = {}) {
  const heard = new Map();
  const sent = [];
  const said = [];
  const model = {
    get: () => "run this cell again",
    send: (message) => { sends(); sent.push(message); },
    on: (name, act) => heard.set(name, act),
    off: (name, act) => { if (heard.get(name) === act) heard.delete(name); },
  };
  return { heard, sent, said, kernel: attend(model, (text) => said.push(text)) };
}

test("a noun is counted in words", () => {
  assert.deepEqual([0, 1, 2, 1001].map((n) => plural(n, "row")), ["0 rows", "1 row", "2 rows", "1,001 rows"]);
});

test("who has no answer is told what to do, once, until there is one", (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const { heard, said, sent, kernel } = stage();
  context.mock.timers.tick(60_000);
  assert.deepEqual(said, [], "nobody has asked for anything");
  kernel.ask({ select: "late" });
  kernel.ask({ select: "worst" });
  assert.deepEqual(sent, [{}, { select: "late" }, { select: "worst" }]);
  context.mock.timers.tick(9_000);
  assert.deepEqual(said, []);
  context.mock.timers.tick(2_000);
  assert.deepEqual(said, [silent("run this cell again")]);
  heard.get("msg:custom")();
  assert.equal(said.pop(), "");
  kernel.ask({});
  heard.get("change")();
  context.mock.timers.tick(60_000);
  assert.equal(said.length, 1, "what the kernel tells is an answer, too");
  kernel.ask({});
  kernel.stop();
  context.mock.timers.tick(60_000);
  assert.equal(said.length, 1);
  assert.equal(heard.size, 0);
});

test("a kernel that is gone is said at once, and is back when it answers", () => {
  const { heard, sent, said } = stage();
  heard.get("comm_live_update")();
  assert.deepEqual(said, [gone("run this cell again")]);
  assert.deepEqual(sent, [{}, {}], "it is asked whether it is back");
  heard.get("msg:custom")();
  assert.equal(said.pop(), "");
});

test("what cannot be sent is said as well", () => {
  const { said, kernel } = stage({ sends: () => { throw new Error("Cannot send"); } });
  kernel.ask({});
  assert.deepEqual(said, [gone("run this cell again")]);
});
