// The OpenAI Agents SDK, with its default transport and its default client.
import assert from "node:assert/strict";
import { Agent, OpenAIConversationsSession, hostedMcpTool, run, tool } from "@openai/agents";
import { z } from "zod";
import { IMAGE, MODEL, SECRETARY, SERVER, Weather, play, priceList, told, version } from "./scenarios.mjs";

const clerk = (more = {}) => new Agent({ name: "Clerk", instructions: "Be brief.", model: MODEL, ...more });

async function plain() {
  const { prompt, answer, next, recalled } = told.plain;
  const first = await run(clerk(), prompt);
  assert.equal(first.finalOutput, answer);
  const second = await run(clerk(), [...first.history, { role: "user", content: next }]);
  assert.equal(second.finalOutput, recalled);
  const third = await run(clerk(), next, { previousResponseId: second.lastResponseId });
  assert.equal(third.finalOutput, recalled);
  const session = new OpenAIConversationsSession();
  assert.equal((await run(clerk(), prompt, { session })).finalOutput, answer);
  assert.equal((await run(clerk(), next, { session })).finalOutput, recalled);
}

/** The text of a run that is streamed, and its result. */
async function followed(agent, input, more = {}) {
  const result = await run(agent, input, { stream: true, ...more });
  let text = "";
  for await (const piece of result.toTextStream()) text += piece;
  await result.completed;
  return { result, text };
}

async function streamed() {
  const { prompt, before, answer, next, recalled } = told.streamed;
  const { result, text } = await followed(clerk(), prompt);
  assert.equal(text, before + answer);
  assert.equal(result.finalOutput, answer);
  const second = await followed(clerk(), [...result.history, { role: "user", content: next }]);
  assert.equal(second.text, recalled);
}

const priceTool = (list) =>
  tool({
    name: "get_price",
    description: "The price of a thing.",
    parameters: z.object({ thing: z.string() }),
    execute: async (args) => list.getPrice(args),
  });

async function tools() {
  const { prompt, answer, next, recalled } = told.tools;
  const list = priceList();
  const result = await run(clerk({ tools: [priceTool(list)] }), prompt);
  assert.equal(result.finalOutput, answer);
  list.check();
  const second = await run(clerk({ tools: [priceTool(list)] }), [...result.history, { role: "user", content: next }]);
  assert.equal(second.finalOutput, recalled);
  const again = priceList();
  const { text } = await followed(clerk({ tools: [priceTool(again)] }), prompt);
  assert.equal(text, answer);
  again.check();
}

async function question() {
  const { prompt, question, reply, answer } = told.question;
  const first = await run(clerk(), prompt);
  assert.equal(first.finalOutput, question);
  const second = await run(clerk(), reply, { previousResponseId: first.lastResponseId });
  assert.equal(second.finalOutput, answer);
  const asked = await followed(clerk(), prompt);
  assert.equal(asked.text, question);
  const done = await followed(clerk(), [...asked.result.history, { role: "user", content: reply }]);
  assert.equal(done.text, answer);
}

async function approval() {
  const { prompt, answer, next, recalled } = told.approval;
  const letters = hostedMcpTool({ serverLabel: SERVER.label, serverUrl: SERVER.url, requireApproval: "always" });
  const secretary = clerk({ model: SECRETARY, tools: [letters] });
  const asked = await run(secretary, prompt);
  assert.equal(asked.interruptions.length, 1);
  asked.state.approve(asked.interruptions[0]);
  const done = await run(secretary, asked.state);
  assert.equal(done.finalOutput, answer);
  const more = await run(secretary, [...done.history, { role: "user", content: next }]);
  assert.equal(more.finalOutput, recalled);
}

async function images() {
  const { prompt, answer } = told.images;
  const content = [
    { type: "input_text", text: prompt },
    { type: "input_image", image: IMAGE },
  ];
  assert.equal((await run(clerk(), [{ role: "user", content }])).finalOutput, answer);
  const takePhoto = tool({
    name: "take_photo",
    description: "Takes a photo.",
    parameters: z.object({ of: z.string() }),
    execute: async () => ({ type: "image", image: IMAGE }),
  });
  assert.equal((await run(clerk({ tools: [takePhoto] }), told.images.photo)).finalOutput, answer);
}

async function structured() {
  const { prompt, answer } = told.structured;
  assert.deepEqual((await run(clerk({ outputType: Weather }), prompt)).finalOutput, answer);
  const { result } = await followed(clerk({ outputType: Weather }), prompt);
  assert.deepEqual(result.finalOutput, answer);
}

await play(`@openai/agents ${version("@openai/agents")} (JavaScript)`, {
  plain, streamed, tools, question, approval, background: "the SDK has no background", images, structured,
});
