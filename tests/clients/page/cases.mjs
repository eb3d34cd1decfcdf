// What a page of another origin does with the `openai` SDK. `run` returns, for each case, what the
// page saw or the error that it got.

import OpenAI, { APIError } from "openai";

const sdk = (where, options = {}) =>
  new OpenAI({
    baseURL: where.base,
    apiKey: where.key,
    dangerouslyAllowBrowser: true,
    maxRetries: 0,
    ...options,
  });

const sky = (where) => ({
  model: where.model,
  prompt: "The sky is",
  max_tokens: 8,
  temperature: 0,
});

async function refused(promise) {
  try {
    await promise;
  } catch (error) {
    if (!(error instanceof APIError)) throw error;
    return {
      class: error.constructor.name,
      status: error.status,
      code: error.code,
      param: error.param,
      id: error.requestID,
      retry: error.headers?.get("x-should-retry"),
      after: error.headers?.get("retry-after"),
    };
  }
  throw new Error("no error");
}

const cases = {
  async models(where) {
    const ids = [];
    for await (const model of sdk(where).models.list()) ids.push(model.id);
    return ids;
  },

  async text(where) {
    const answer = await sdk(where).completions.create(sky(where));
    return { text: answer.choices[0].text, id: answer._request_id, usage: answer.usage };
  },

  async stream(where) {
    const chunks = await sdk(where).completions.create({
      ...sky(where),
      stream: true,
      stream_options: { include_usage: true },
    });
    const texts = [];
    let usage = null;
    for await (const chunk of chunks) {
      for (const choice of chunk.choices) texts.push(choice.text);
      usage = chunk.usage ?? usage;
    }
    return { texts, usage };
  },

  async leftStream(where) {
    const client = sdk(where);
    const chunks = await client.completions.create({
      ...sky(where),
      max_tokens: 400,
      stream: true,
    });
    let first = null;
    for await (const chunk of chunks) {
      first = chunk.choices[0].text;
      chunks.controller.abort();
      break;
    }
    const answer = await client.completions.create(sky(where));
    return { first, afterwards: answer.choices[0].text };
  },

  async ownHeaders(where) {
    const { data, response } = await sdk(where)
      .completions.create(sky(where), {
        headers: { "X-Request-Id": "from-a-page" },
        idempotencyKey: crypto.randomUUID(),
      })
      .withResponse();
    return { text: data.choices[0].text, id: response.headers.get("x-request-id") };
  },

  async clamped(where) {
    const { response } = await sdk(where, { apiKey: where.smallKey })
      .completions.create({ ...sky(where), max_tokens: 30 })
      .withResponse();
    return response.headers.get("x-acs-max-tokens-clamped");
  },

  unknownField: (where) =>
    refused(sdk(where).completions.create({ ...sky(where), temprature: 1 })),

  wrongKey: (where) =>
    refused(sdk(where, { apiKey: "sk-acs-" + "0".repeat(32) }).models.list()),

  chat: (where) =>
    refused(
      sdk(where).chat.completions.create({
        model: where.model,
        messages: [{ role: "user", content: "Hello" }],
      }),
    ),

  // The second request with one key: told when to come again, in a header.
  async running(where) {
    const options = { headers: { "Idempotency-Key": crypto.randomUUID() } };
    const client = sdk(where);
    const chunks = await client.completions.create(
      { ...sky(where), max_tokens: 100, stream: true },
      options,
    );
    const second = await refused(
      client.completions.create({ ...sky(where), max_tokens: 100, stream: true }, options),
    );
    for await (const _ of chunks);
    return second;
  },

  // With the SDK's own retries.
  async spent(where) {
    let sent = 0;
    const counted = (...request) => {
      sent += 1;
      return fetch(...request);
    };
    const client = sdk(where, { apiKey: where.spentKey, fetch: counted, maxRetries: 2 });
    return { ...(await refused(client.completions.create(sky(where)))), sent };
  },
};

async function settled(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return { error: `${error?.constructor?.name}: ${error?.message}` };
  }
}

window.run = async (where) => {
  const results = {};
  for (const [name, one] of Object.entries(cases)) results[name] = await settled(one(where));
  return results;
};
