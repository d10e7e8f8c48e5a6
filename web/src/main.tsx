// The page begins: the login from the address, then the frame.

import "./style/base.css";
import "./style/shell.css";
import "./style/run.css";
import { render } from "preact";
import { begin } from "./api/client";
import { App } from "./app";
import { startKeys } from "./parts/keys";
import { start } from "./router";

start();
startKeys();
await begin();
const place = document.getElementById("app")!;
place.replaceChildren(); // what the server wrote stood there until now
render(<App />, place);
