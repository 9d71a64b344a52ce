// What the programs have in common: the scenarios, and how their results are told, one line of JSON for each.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline/promises";
import { z } from "zod";

export const told = JSON.parse(readFileSync(new URL("../scenarios.json", import.meta.url), "utf8"));
export const MODEL = "tool_calling_agent";
/** An agent whose tool needs approval. */
export const SECRETARY = "secretary";
/** Where approvals come from, for clients that want to know it. */
export const SERVER = { label: "longhouse", url: new URL("/", process.env.OPENAI_BASE_URL).href };
export const IMAGE = `data:image/png;base64,${told.images.image}`;
export const Weather = z.object({ city: z.string(), degrees: z.int(), winds: z.array(z.string()) });

/** The version of a package that is installed here. */
export function version(name) {
  const { resolve } = createRequire(import.meta.url);
  const folder = resolve(name).split(`node_modules/${name}/`)[0];
  return JSON.parse(readFileSync(`${folder}node_modules/${name}/package.json`, "utf8")).version;
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

function print(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** Asks for something outside of this program ("slowness" of the model, a "kill" of the server), and waits for it. */
export async function want(what) {
  print({ wants: what });
  await lines.next();
}

/** A function of the client; it keeps what it was asked for. */
export function priceList() {
  const asked = [];
  const getPrice = ({ thing }) => {
    asked.push(thing);
    return told.tools.prices[thing];
  };
  return { asked, getPrice, check: () => assert.deepEqual(asked, Object.keys(told.tools.prices)) };
}

/** Plays all scenarios; a text instead of a function says why the client has no such thing. */
export async function play(client, scenarios) {
  print({ client });
  for (const [scenario, part] of Object.entries(scenarios)) {
    if (typeof part === "string") {
      print({ scenario, result: "lacks", why: part });
      continue;
    }
    try {
      await part();
      print({ scenario, result: "passed" });
    } catch (error) {
      print({ scenario, result: "failed", why: String(error?.stack ?? error).slice(0, 4000) });
    }
  }
  process.exit(0);
}
