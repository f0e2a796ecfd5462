// @ts-check
/** What a user may do, so that nothing else is offered. The node refuses it all the same. */

/**
 * @param {import("../app.js").Session} session
 * @param {"read" | "write" | "stream" | "design"} right
 * @param {string} bucket
 */
export const may = (session, right, bucket) =>
  session.isAdmin || session.roles.includes(`${right}:${bucket}`) || session.roles.includes(`${right}:*`);
