// Pages before the sign-in: whoever comes here leaves nothing of a User behind.
import { forgetUser } from "./memory.js";

forgetUser();
