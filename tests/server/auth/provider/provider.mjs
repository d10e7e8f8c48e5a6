// The certified OpenID Connect provider of npm, with people and groups of the tests. Prints its issuer when it listens, and
// ends with its input. As a native client the server under test may be at any port of loopback.

import Provider from "oidc-provider";
import { createServer } from "node:http";

const PEOPLE = { ada: ["dev"], ben: ["ops", "dev"], eve: ["guests"] };
const server = createServer().listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: "cloister",
        client_secret: "a secret % of & the client",
        application_type: "native",
        redirect_uris: ["http://127.0.0.1/login/oidc/callback"],
      },
    ],
    claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
    pkce: { required: () => true },
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, email: `${id}@example.org`, email_verified: true, groups: PEOPLE[id] ?? [] }),
    }),
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
process.stdin.on("end", () => process.exit(0)).resume();
