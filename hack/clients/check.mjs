// Tries OpenAI's client for JavaScript, unmodified, on a running engine:
// completions, chats, streams, tools, JSON schemas, errors, cancellation.
// The engine's address is OPENAI_BASE_URL; see run.sh.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({apiKey: "none", maxRetries: 0});
const model = (await client.models.list()).data[0].id;
const user = content => ({role: "user", content});
const weather = {
  type: "function",
  function: {name: "get_weather", description: "The weather in a city", parameters: {type: "object", properties: {city: {enum: ["Bern", "Rome"]}, days: {type: "integer", minimum: 1, maximum: 3}}, required: ["city", "days"], additionalProperties: false}},
};

const checks = {
  async "a completion, whole and streamed"() {
    const request = {model, prompt: "package main\n\nimport (\n", max_tokens: 24, temperature: 0, seed: 1, logprobs: 1};
    const whole = await client.completions.create(request);
    assert.equal(whole.usage.completion_tokens, whole.choices[0].logprobs.tokens.length);
    let text = "", usage = null;
    for await (const chunk of await client.completions.create({...request, stream: true, stream_options: {include_usage: true}})) {
      text += chunk.choices[0]?.text ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].text);
    assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async "a chat, whole and streamed"() {
    const request = {model, messages: [{role: "system", content: "Write Go."}, user("Sort a slice")], max_completion_tokens: 24, temperature: 0.7, seed: 2, n: 2, logprobs: true, top_logprobs: 2};
    const whole = await client.chat.completions.create(request);
    assert.equal(whole.choices.length, 2);
    assert.equal(whole.choices[0].logprobs.content[0].top_logprobs.length, 2);
    const stream = client.chat.completions.stream(request);
    const last = await stream.finalChatCompletion();
    for (const i of [0, 1]) assert.equal(last.choices[i].message.content, whole.choices[i].message.content);
  },
  async "a call of a tool, whole and streamed"() {
    const request = {model, messages: [user("Weather in Bern?")], tools: [weather], tool_choice: {type: "function", function: {name: "get_weather"}}, seed: 3, max_completion_tokens: 200};
    const whole = await client.chat.completions.create(request);
    const call = whole.choices[0].message.tool_calls[0];
    assert.equal(call.function.name, "get_weather");
    const args = JSON.parse(call.function.arguments);
    assert.ok(["Bern", "Rome"].includes(args.city) && args.days >= 1 && args.days <= 3, call.function.arguments);
    const streamed = await client.chat.completions.stream(request).finalChatCompletion();
    assert.equal(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
    // The call and its result go back.
    const next = await client.chat.completions.create({model, messages: [...request.messages, whole.choices[0].message, {role: "tool", tool_call_id: call.id, content: "sunny"}], tools: [weather], max_completion_tokens: 8});
    assert.equal(next.choices.length, 1);
  },
  async "an answer of a JSON schema"() {
    const schema = {type: "object", properties: {name: {type: "string", maxLength: 12}, age: {type: "integer", minimum: 0, maximum: 120}}, required: ["name", "age"], additionalProperties: false};
    const answer = await client.chat.completions.create({model, messages: [user("A person")], seed: 4, max_completion_tokens: 200, response_format: {type: "json_schema", json_schema: {name: "person", strict: true, schema}}});
    const person = JSON.parse(answer.choices[0].message.content);
    assert.deepEqual(Object.keys(person).sort(), ["age", "name"]);
  },
  async "errors"() {
    await assert.rejects(client.chat.completions.create({model, messages: [user("x ".repeat(100000))]}), e => e instanceof OpenAI.BadRequestError && e.code === "context_length_exceeded" && e.param === "messages");
    await assert.rejects(client.chat.completions.create({model: "gpt-4", messages: [user("x")]}), e => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
    await assert.rejects(client.completions.create({model, prompt: "x", temperature: 9}), e => e instanceof OpenAI.BadRequestError && e.param === "temperature");
  },
  async "cancellation"() {
    const stream = await client.completions.create({model, prompt: "package main", max_tokens: 900, stream: true});
    for await (const chunk of stream) {
      assert.ok(chunk.choices);
      stream.controller.abort();
      break;
    }
    const metrics = client.baseURL.replace(/\/v1$/, "/metrics");
    for (let i = 0; ; i++) {
      if (/^outrider_requests_running\S* 0$/m.test(await (await fetch(metrics)).text())) break;
      assert.ok(i < 200, "the request still runs");
      await new Promise(done => setTimeout(done, 25));
    }
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log("ok  ", name);
}
