// The Vercel AI SDK, with the default provider of @ai-sdk/openai.
import assert from "node:assert/strict";
import { openai } from "@ai-sdk/openai";
import { Output, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { MODEL, SECRETARY, SERVER, Weather, play, priceList, told, version } from "./scenarios.mjs";

const model = openai(MODEL);
const user = (content) => ({ role: "user", content });

async function plain() {
  const { prompt, before, answer, next, recalled } = told.plain;
  const first = await generateText({ model, prompt, maxRetries: 0 });
  assert.equal(first.text, before + answer);
  assert.equal(first.finishReason, "stop");
  const messages = [user(prompt), ...first.responseMessages, user(next)];
  const second = await generateText({ model, messages, maxRetries: 0 });
  assert.equal(second.text, recalled);
  const previousResponseId = second.providerMetadata.openai.responseId;
  const more = { providerOptions: { openai: { previousResponseId } } };
  assert.equal((await generateText({ model, prompt: next, ...more, maxRetries: 0 })).text, recalled);
}

/** Everything of a stream; an error in it is an error. */
async function followed(options) {
  const result = streamText({ model, maxRetries: 0, onError: () => {}, ...options });
  const pieces = [];
  for await (const part of result.stream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") pieces.push(part.text);
  }
  return { pieces, text: pieces.join(""), messages: await result.responseMessages, result };
}

async function streamed() {
  const { prompt, before, answer, next, recalled } = told.streamed;
  const first = await followed({ prompt });
  assert.equal(first.text, before + answer);
  assert.ok(first.pieces.length > 2);
  const second = await followed({ messages: [user(prompt), ...first.messages, user(next)] });
  assert.equal(second.text, recalled);
}

const priceTool = (list) => ({
  get_price: tool({
    description: "The price of a thing.",
    inputSchema: z.object({ thing: z.string() }),
    execute: async (args) => list.getPrice(args),
  }),
});

async function tools() {
  const { prompt, answer, next, recalled } = told.tools;
  const list = priceList();
  const stopWhen = isStepCount(5);
  const result = await generateText({ model, prompt, tools: priceTool(list), stopWhen, maxRetries: 0 });
  assert.equal(result.text, answer);
  list.check();
  const messages = [user(prompt), ...result.responseMessages, user(next)];
  assert.equal((await generateText({ model, messages, tools: priceTool(list), maxRetries: 0 })).text, recalled);
  const again = priceList();
  assert.equal((await followed({ prompt, tools: priceTool(again), stopWhen })).text, answer);
  again.check();
}

async function question() {
  const { prompt, question, reply, answer } = told.question;
  const first = await generateText({ model, prompt, maxRetries: 0 });
  assert.equal(first.text, question);
  const messages = [user(prompt), ...first.responseMessages, user(reply)];
  assert.equal((await generateText({ model, messages, maxRetries: 0 })).text, answer);
  const asked = await followed({ prompt });
  assert.equal(asked.text, question);
  assert.equal((await followed({ messages: [user(prompt), ...asked.messages, user(reply)] })).text, answer);
}

async function approval() {
  const { prompt, answer, next, recalled } = told.approval;
  const letters = openai.tools.mcp({ serverLabel: SERVER.label, serverUrl: SERVER.url, requireApproval: "always" });
  const ask = (messages) => generateText({ model: openai(SECRETARY), messages, tools: { letters }, maxRetries: 0 });
  const messages = [user(prompt)];
  const asked = await ask(messages);
  const requests = asked.content.filter((part) => part.type === "tool-approval-request");
  assert.equal(requests.length, 1);
  const { approvalId } = requests[0];
  const decision = { type: "tool-approval-response", approvalId, approved: true, providerExecuted: true };
  messages.push(...asked.responseMessages, { role: "tool", content: [decision] });
  const done = await ask(messages);
  assert.equal(done.text, answer);
  messages.push(...done.responseMessages, user(next));
  assert.equal((await ask(messages)).text, recalled);
}

async function images() {
  const { prompt, answer, image, photo } = told.images;
  const content = [
    { type: "text", text: prompt },
    { type: "file", data: Buffer.from(image, "base64"), mediaType: "image/png" },
  ];
  assert.equal((await generateText({ model, messages: [user(content)], maxRetries: 0 })).text, answer);
  assert.equal((await followed({ messages: [user(content)] })).text, answer);
  const takePhoto = tool({
    description: "Takes a photo.",
    inputSchema: z.object({ of: z.string() }),
    execute: async () => image,
    toModelOutput: ({ output }) => ({
      type: "content",
      value: [{ type: "file", data: { type: "data", data: output }, mediaType: "image/png" }],
    }),
  });
  const tools = { take_photo: takePhoto };
  const result = await generateText({ model, prompt: photo, tools, stopWhen: isStepCount(5), maxRetries: 0 });
  assert.equal(result.text, answer);
}

async function structured() {
  const { prompt, answer } = told.structured;
  const output = Output.object({ schema: Weather });
  assert.deepEqual((await generateText({ model, prompt, output, maxRetries: 0 })).output, answer);
  const { result } = await followed({ prompt, output });
  assert.deepEqual(await result.output, answer);
}

await play(`ai ${version("ai")}, @ai-sdk/openai ${version("@ai-sdk/openai")} (JavaScript)`, {
  plain, streamed, tools, question, approval, background: "the SDK has no background", images, structured,
});
