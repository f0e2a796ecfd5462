"""A server with databases that speaks as much of CouchDB's API as replicators use."""

import json
import secrets

import aiohttp
from aiohttp import web


def revision(name, number, *, parent=None, **content):
    """A document as replicators send it."""
    signature = f"{number:032x}"
    start = 1 + (int(parent["_rev"].partition("-")[0]) if parent else 0)
    ids = [signature, *(parent["_revisions"]["ids"] if parent else [])]
    return {"_id": name, "_rev": f"{start}-{signature}",
            "_revisions": {"start": start, "ids": ids}, **content}  # fmt: skip


class Base:
    """One database: revisions by document, attachments beside them."""

    def __init__(self):
        self.documents, self.locals, self.changes = {}, {}, []
        self.attachments = {}  # (id, rev) -> [(name, type, bytes)]
        self.refused = set()

    def put(self, document, attachments=()):
        found = self.documents.setdefault(document["_id"], {})
        found[document["_rev"]] = document
        self.attachments[document["_id"], document["_rev"]] = list(attachments)
        self.changes = [name for name in self.changes if name != document["_id"]]
        self.changes.append(document["_id"])

    def known(self, name):
        return {
            f"{d['_revisions']['start'] - i}-{signature}"
            for d in self.documents.get(name, {}).values()
            for i, signature in enumerate(d["_revisions"]["ids"])
        }

    def leaves(self, name):
        found = self.documents.get(name, {})
        inner = set()
        for document in found.values():
            start, ids = document["_revisions"].values()
            inner |= {f"{start - i}-{ids[i]}" for i in range(1, len(ids))}
        return [found[rev] for rev in found if rev not in inner]


class Couch:
    """`users`: name -> password; `has_sessions`: whether it knows cookies."""

    def __init__(self, users=(), *, has_sessions=True):
        self.bases, self.users, self.has_sessions = {}, dict(users), has_sessions
        self.cookies, self.asked, self.logins = set(), [], []
        self.headers = set()  # names of all that came
        self.poison = {}  # method and path -> names that make such a request fail as a whole
        self.breaks_off = False  # instead of an answer with status 500

    def application(self):
        app = web.Application(middlewares=[self.guard], client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self.serve)
        return app

    @web.middleware
    async def guard(self, request, handler):
        self.asked.append((request.method, request.path))
        self.headers |= {name.lower() for name in request.headers}
        if self.users and request.path != "/_session" and not self.is_known(request):
            return failure(401, "unauthorized", "You are not authorized to access this db.")
        if await self.is_poisoned(request):
            if self.breaks_off:
                request.transport.abort()
            return failure(500, "function_clause", "a reason of Erlang's")
        return await handler(request)

    async def is_poisoned(self, request):
        names = self.poison.get((request.method, request.path), set())
        body = (await request.read()).decode() if names else ""
        return bool(names & request.query.keys()) or any(name in body for name in names)

    def is_known(self, request):
        if request.cookies.get("AuthSession") in self.cookies:
            return True
        header = request.headers.get("Authorization")
        return bool(header) and aiohttp.BasicAuth.decode(header).password in self.users.values()

    async def serve(self, request):
        parts = request.path.strip("/").split("/")
        if parts[0] == "_session":
            return await self.session(request)
        if len(parts) == 1 and request.method == "PUT":
            if parts[0] in self.bases:
                return failure(412, "file_exists", "there")
            self.bases[parts[0]] = Base()
            return web.json_response({"ok": True}, status=201)
        base = self.bases.get(parts[0])
        if base is None:
            return failure(404, "not_found", "Database does not exist.")
        if len(parts) == 1:
            return web.json_response({"instance_start_time": "0", "update_seq": "1-x"})
        if parts[1] == "_local":
            return await self.local(base, parts[2], request)
        handler = getattr(self, "on" + parts[1], None)
        if handler is not None:
            return await handler(base, request)
        return await self.document(base, request.path.partition("/")[2].partition("/")[2], request)

    async def session(self, request):
        given = await request.json()
        self.logins.append(given["name"])
        if not self.has_sessions:
            return failure(404, "not_found", "missing")
        if self.users.get(given["name"]) != given["password"]:
            return failure(401, "unauthorized", "Name or password is incorrect.")
        answer = web.json_response({"ok": True})
        cookie = secrets.token_hex(8)
        self.cookies.add(cookie)
        answer.set_cookie("AuthSession", cookie)
        return answer

    async def local(self, base, name, request):
        if request.method == "GET":
            found = base.locals.get(name)
            return web.json_response(found) if found else failure(404, "not_found", "missing")
        body = await request.json()
        old = base.locals.get(name, {"_rev": None})
        if body.get("_rev") != old["_rev"]:
            return failure(409, "conflict", "Document update conflict.")
        number = int((old["_rev"] or "0-0")[2:]) + 1
        base.locals[name] = {**body, "_rev": f"0-{number}"}
        return web.json_response({"ok": True}, status=201)

    async def on_changes(self, base, request):
        since, limit = int(request.query["since"].partition("-")[0]), int(request.query["limit"])
        wanted = (await request.json())["doc_ids"] if request.method == "POST" else None
        rows = [
            {"seq": f"{seq}-x", "id": name,
             "changes": [{"rev": leaf["_rev"]} for leaf in base.leaves(name)]}
            for seq, name in enumerate(base.changes, 1)
            if seq > since and (wanted is None or name in wanted)
        ]  # fmt: skip
        page = rows[:limit]
        last = page[-1]["seq"] if len(page) < len(rows) else f"{len(base.changes)}-x"
        return web.json_response(
            {"results": page, "last_seq": last, "pending": len(rows) - len(page)}
        )

    async def on_revs_diff(self, base, request):
        found = {}
        for name, revs in (await request.json()).items():
            if missing := [rev for rev in revs if rev not in base.known(name)]:
                found[name] = {"missing": missing}
        return web.json_response(found)

    async def on_bulk_get(self, base, request):
        results = []
        for asked in (await request.json())["docs"]:
            found = base.documents.get(asked["id"], {}).get(asked["rev"])
            got = {"ok": self.shown(base, found, "stub")} if found else {
                "error": {"id": asked["id"], "rev": asked["rev"], "error": "not_found"}
            }  # fmt: skip
            results.append({"id": asked["id"], "docs": [got]})
        return web.json_response({"results": results})

    def shown(self, base, document, how):
        attachments = base.attachments[document["_id"], document["_rev"]]
        if not attachments:
            return document
        stubs = {
            name: {"content_type": kind, "length": len(data), how: True}
            for name, kind, data in attachments
        }
        return {**document, "_attachments": stubs}

    async def on_bulk_docs(self, base, request):
        failures = []
        for document in (await request.json())["docs"]:
            if document["_id"] in base.refused:
                failures.append({"id": document["_id"], "rev": document["_rev"],
                                 "error": "forbidden", "reason": "no"})  # fmt: skip
            else:
                base.put(document)
        return web.json_response(failures, status=201)

    async def on_ensure_full_commit(self, base, request):
        return web.json_response({"ok": True, "instance_start_time": "0"}, status=201)

    async def document(self, base, name, request):
        if request.method == "PUT":
            return await self.write(base, name, request)
        if "open_revs" not in request.query:
            found = base.leaves(name)
            return web.json_response(found[0]) if found else failure(404, "not_found", "missing")
        with aiohttp.MultipartWriter("mixed") as outer:
            for rev in json.loads(request.query["open_revs"]):
                found = base.documents.get(name, {}).get(rev)
                if found is None:
                    kind = {"Content-Type": 'application/json; error="true"'}
                    outer.append(json.dumps({"missing": rev}), kind)
                    continue
                inner = aiohttp.MultipartWriter("related")
                inner.append_json(self.shown(base, found, "follows"))
                for file, kind, data in base.attachments[name, rev]:
                    part = inner.append(data, {"Content-Type": kind})
                    part.set_content_disposition("attachment", filename=file)
                outer.append(inner)
        return web.Response(body=outer, headers={"Content-Type": outer.headers["Content-Type"]})

    async def write(self, base, name, request):
        if name in base.refused:
            return failure(403, "forbidden", "no")
        if request.content_type == "application/json":
            base.put(await request.json())
            return web.json_response({"ok": True}, status=201)
        reader = await request.multipart()
        document = await (await reader.next()).json()
        attachments = []
        for file, stub in document.pop("_attachments", {}).items():
            part = await reader.next()
            attachments.append((file, stub["content_type"], bytes(await part.read())))
        base.put(document, attachments)
        return web.json_response({"ok": True}, status=201)


def failure(status, error, reason):
    return web.json_response({"error": error, "reason": reason}, status=status)
