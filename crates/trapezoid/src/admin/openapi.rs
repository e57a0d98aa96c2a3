//! `/api/openapi.json`: the description of the pages, for programs.

use serde_json::{Value, json};

use super::registrations::MAX_LIMIT;

/// The document (OpenAPI 3.1).
pub(super) fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Trapezoid",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "State and operation of a SIP server.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "token": [] }],
        "paths": paths(),
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token in the file that [admin] token_file names.",
                },
            },
            "schemas": schemas(),
            "responses": {
                "Wrong": response("What is wrong with the request.", "Error"),
            },
        },
    })
}

fn text() -> Value {
    json!({ "schema": { "type": "string" } })
}

/// A change of a group's member.
fn change(summary: &str) -> Value {
    json!({
        "summary": summary,
        "parameters": [{
            "name": "member", "in": "query", "schema": { "type": "string" },
            "description": "The member's URI as the configuration has it, in place of a body.",
        }],
        "requestBody": content("Named"),
        "responses": {
            "200": response("The member as it is now.", "Changed"),
            "400": wrong(), "401": wrong(), "404": wrong(),
            "409": response("The configuration drains it (weight = 0).", "Error"),
        },
    })
}

fn paths() -> Value {
    let group = json!([{
        "name": "group", "in": "path", "required": true, "schema": { "type": "string" },
        "description": "Its name in the configuration.",
    }]);
    let mut paths = json!({
        "/metrics": { "get": {
            "summary": "Everything that is counted, for Prometheus",
            "security": [],
            "responses": { "200": {
                "description": "Prometheus' text format, or OpenMetrics if `Accept` prefers it.",
                "content": { "text/plain": text(), "application/openmetrics-text": text() },
            } },
        } },
        "/health/live": { "get": {
            "summary": "Liveness", "security": [], "responses": { "200": response("The process runs.", "Health") },
        } },
        "/health/ready": { "get": {
            "summary": "Whether traffic may come",
            "security": [],
            "responses": {
                "200": response("It may.", "Health"),
                "503": response("It may not; the reasons say why.", "Health"),
            },
        } },
        "/api/v1/status": { "get": {
            "summary": "State of the server",
            "responses": { "200": response("The state.", "Status"), "401": wrong() },
        } },
        "/api/v1/groups": { "get": {
            "summary": "Groups of next hops and their members",
            "responses": { "200": response("The groups.", "Groups"), "401": wrong() },
        } },
        "/api/v1/groups/{group}/drain": {
            "parameters": group,
            "post": change("The member gets no new requests"),
        },
        "/api/v1/groups/{group}/enable": {
            "parameters": group,
            "post": change("The member gets new requests again"),
        },
        "/api/v1/reload": { "post": {
            "summary": "Read the configuration and the files that it names again, as SIGHUP does",
            "responses": {
                "200": response("All of it was taken, but what holds after a restart.", "Reload"),
                "401": wrong(),
                "422": response("Something is wrong and stays as it was; the errors say what.", "Reload"),
                "503": response("The server is about to end.", "Error"),
            },
        } },
    });
    merge(&mut paths, credentials());
    merge(&mut paths, cpu_split());
    merge(&mut paths, bans());
    merge(&mut paths, registrations());
    paths
}

/// Appends the keys of one object to another.
fn merge(all: &mut Value, more: Value) {
    if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
        all.extend(more);
    }
}

/// The pages of the subscriber store.
fn credentials() -> Value {
    json!({
        "/api/v1/credentials": { "get": {
            "summary": "How look-ups of credentials are",
            "responses": {
                "200": response("The store and its queue.", "Credentials"),
                "401": wrong(),
                "503": response("The server is starting.", "Error"),
            },
        } },
        "/api/v1/credentials/cache": { "delete": {
            "summary": "Forget cached credentials, of one subscriber or of all",
            "parameters": [{
                "name": "subscriber", "in": "query", "schema": { "type": "string" },
                "description": "USER@DOMAIN; without it all subscribers are forgotten.",
            }],
            "responses": {
                "200": response("How many entries were forgotten.", "Forgotten"),
                "400": wrong(), "401": wrong(),
                "503": response("The server is starting.", "Error"),
            },
        } }
    })
}

/// The CPU time by component.
fn cpu_split() -> Value {
    json!({
        "/api/v1/cpu-split": {
            "get": {
                "summary": "CPU time by component since the split was switched on",
                "responses": { "200": response("The split.", "CpuSplit"), "401": wrong() },
            },
            "put": {
                "summary": "Switch it on, from zero, or off; what was counted stays until it is switched on again",
                "requestBody": content("Switch"),
                "responses": {
                    "200": response("The split as it is now.", "CpuSplit"),
                    "400": wrong(), "401": wrong(), "503": wrong(),
                },
            },
        },
    })
}

/// The bans in force.
fn bans() -> Value {
    json!({
        "/api/v1/bans": {
            "get": {
                "summary": "Banned sources",
                "responses": { "200": response("The bans in force.", "Bans"), "401": wrong() },
            },
            "post": {
                "summary": "Ban a source, or change its ban",
                "requestBody": content("WantedBan"),
                "responses": {
                    "200": response("The ban. It holds, also after a restart.", "Banned"),
                    "400": wrong(), "401": wrong(),
                    "409": response("The source is of the trust domain, or there is no room.", "Error"),
                    "500": response("It holds, but could not be written to disk.", "Error"),
                },
            },
        },
        "/api/v1/bans/{source}": {
            "parameters": [{
                "name": "source", "in": "path", "required": true, "schema": { "type": "string" },
                "description": "An address of the source.",
            }],
            "delete": {
                "summary": "Lift a ban, and forget what the source did before",
                "responses": {
                    "200": response("It is lifted.", "Lifted"),
                    "400": wrong(), "401": wrong(), "404": wrong(),
                    "500": response("It is lifted, but that could not be written to disk.", "Error"),
                },
            },
        },
    })
}

/// Schemas of bans.
fn ban_schemas() -> Value {
    let text = || json!({ "type": "string" });
    let number = || json!({ "type": "integer", "minimum": 0 });
    let maybe =
        |description: &str| json!({ "type": ["integer", "null"], "minimum": 0, "description": description });
    json!({
        "Bans": object(&json!({ "bans": list("Ban"), "limit": number() }), &["bans", "limit"]),
        "Ban": object(
            &json!({
                "source": {
                    "type": "string",
                    "description": "An address of IPv4, or a network of 64 bits of IPv6 as 2001:db8::/64.",
                },
                "since_unix_s": number(),
                "until_unix_s": maybe("null: until it is lifted."),
                "left_s": maybe("null: until it is lifted."),
                "strikes": { "type": "integer", "minimum": 1, "description": "The number of bans of this source so far." },
                "by": { "enum": ["failures", "hand"] },
                "reason": text(),
            }),
            &["source", "since_unix_s", "until_unix_s", "left_s", "strikes", "by", "reason"],
        ),
        "WantedBan": object(
            &json!({
                "source": text(),
                "seconds": {
                    "type": "integer", "minimum": 1, "maximum": 31_536_000,
                    "description": "Absent: until it is lifted.",
                },
                "reason": { "type": "string", "maxLength": 200 },
            }),
            &["source"],
        ),
        "Banned": object(&json!({ "ban": reference("Ban") }), &["ban"]),
        "Lifted": object(&json!({ "lifted": text() }), &["lifted"]),
    })
}

/// The contacts that have registered.
fn registrations() -> Value {
    let parameter = |name: &str, description: &str| json!({ "name": name, "in": "query", "schema": { "type": "string" }, "description": description });
    let starting = || response("The server is starting.", "Error");
    json!({
        "/api/v1/registrations": { "get": {
            "summary": "Registered contacts, page by page",
            "description": "Filters hold together. A page may have fewer rows than its limit, or none, before the last: go on \
                            until `next` is null. What stays registered meanwhile is listed once.",
            "parameters": [
                parameter("user", "The user part of the address-of-record: whole, in its case."),
                parameter("domain", "The domain of the address-of-record: whole, in any case."),
                parameter("contact", "A part of the contact's URI, in any case."),
                parameter("source", "Where the REGISTER came from: an address, a network, or an address with a port."),
                parameter("user_agent", "A part of its User-Agent, in any case."),
                {
                    "name": "limit", "in": "query",
                    "schema": { "type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": 100 },
                    "description": "Rows of the page. An address-of-record that has more contacts than that is a page by itself.",
                },
                parameter("cursor", "`next` of the page before."),
            ],
            "responses": {
                "200": response("A page.", "Registrations"),
                "400": wrong(), "401": wrong(), "503": starting(),
            },
        } },
        "/api/v1/registrations/{aor}": {
            "parameters": [{
                "name": "aor", "in": "path", "required": true, "schema": { "type": "string" },
                "description": "The address-of-record as USER@DOMAIN.",
            }],
            "get": {
                "summary": "The contacts of one address-of-record",
                "responses": {
                    "200": response("The contacts, best first.", "Registered"),
                    "400": wrong(), "401": wrong(), "404": wrong(), "503": starting(),
                },
            },
            "delete": {
                "summary": "Remove one contact, or all, as a REGISTER with Expires: 0 does",
                "parameters": [
                    parameter("contact", "The contact's URI; without it and `source` all contacts are removed."),
                    parameter("source", "Where its REGISTER came from: an address, a network, or an address with a port."),
                ],
                "responses": {
                    "200": response("They are removed. The phone's next REGISTER is taken as ever.", "Removed"),
                    "400": wrong(), "401": wrong(), "404": wrong(),
                    "503": response("The removal could not be written to disk, or the server is starting.", "Error"),
                },
            },
        },
    })
}

/// Schemas of registrations.
fn registration_schemas() -> Value {
    let text = || json!({ "type": "string" });
    let number = || json!({ "type": "integer", "minimum": 0 });
    let maybe = |kind: &str, description: &str| json!({ "type": [kind, "null"], "description": description });
    json!({
        "Registrations": object(
            &json!({
                "registrations": list("Registration"),
                "next": maybe("string", "The cursor of the next page; null: this is the last."),
            }),
            &["registrations", "next"],
        ),
        "Registered": object(
            &json!({ "address_of_record": text(), "registrations": list("Registration") }),
            &["address_of_record", "registrations"],
        ),
        "Registration": object(
            &json!({
                "address_of_record": text(), "contact": text(),
                "source": { "type": "string", "description": "Address and port that the REGISTER came from." },
                "transport": { "enum": ["udp", "tcp", "tls", "ws", "wss"] },
                "user_agent": maybe("string", "Its User-Agent, 128 bytes at most."),
                "expires_unix_s": number(), "left_s": number(),
                "call_id": text(), "cseq": number(),
                "q": { "type": "number", "minimum": 0, "maximum": 1 },
                "instance": maybe("string", "+sip.instance (RFC 5626)."),
                "reg_id": maybe("integer", "reg-id (RFC 5626)."),
                "path": maybe("string", "Values of Path, topmost first (RFC 3327)."),
                "ping": {
                    "enum": ["unanswered", "answered", "lost", null],
                    "description": "Whether the phone behind a NAT answers pings. `lost`: it gets no requests; null: it is not pinged.",
                },
            }),
            &[
                "address_of_record", "contact", "source", "transport", "user_agent", "expires_unix_s", "left_s",
                "call_id", "cseq", "q", "instance", "reg_id", "path", "ping",
            ],
        ),
        "Removed": object(
            &json!({ "address_of_record": text(), "removed": number() }),
            &["address_of_record", "removed"],
        ),
    })
}

/// Schemas of CPU time.
fn cpu_schemas() -> Value {
    let text = || json!({ "type": "string" });
    let seconds = || json!({ "type": "number", "minimum": 0, "description": "Seconds." });
    json!({
        "Switch": object(&json!({ "on": { "type": "boolean" } }), &["on"]),
        "CpuSplit": object(
            &json!({
                "on": { "type": "boolean" },
                "elapsed_s": seconds(),
                "workers_cpu_seconds": seconds(),
                "components": list("CpuComponent"),
                "workers": list("CpuWorker"),
                "other_threads": list("CpuThread"),
            }),
            &["on", "elapsed_s", "workers_cpu_seconds", "components", "workers", "other_threads"],
        ),
        "CpuComponent": object(
            &json!({
                "component": text(), "meaning": text(), "cpu_seconds": seconds(),
                "share_percent": {
                    "type": "number", "minimum": 0, "maximum": 100,
                    "description": "Of the CPU time of all workers.",
                },
            }),
            &["component", "meaning", "cpu_seconds", "share_percent"],
        ),
        "CpuWorker": object(
            &json!({
                "thread": text(), "cpu_seconds": seconds(),
                "turns_measured": { "type": "integer", "minimum": 0, "description": "What the shares rest on." },
                "components": {
                    "type": "object", "additionalProperties": { "type": "number" },
                    "description": "Seconds by component.",
                },
            }),
            &["thread", "cpu_seconds", "turns_measured", "components"],
        ),
        "CpuThread": object(
            &json!({ "thread": text(), "component": text(), "cpu_seconds": seconds() }),
            &["thread", "component", "cpu_seconds"],
        ),
    })
}

fn schemas() -> Value {
    let mut schemas = most_schemas();
    merge(&mut schemas, cpu_schemas());
    merge(&mut schemas, ban_schemas());
    merge(&mut schemas, registration_schemas());
    schemas
}

fn most_schemas() -> Value {
    let text = || json!({ "type": "string" });
    let number = || json!({ "type": "integer", "minimum": 0 });
    let texts = |description: &str| json!({ "type": "array", "items": text(), "description": description });
    json!({
        "Error": object(&json!({ "error": text() }), &["error"]),
        "Health": object(&json!({ "status": text(), "reasons": texts("Why not.") }), &["status"]),
        "Status": object(
            &json!({
                "version": text(), "uptime_s": number(), "workers": number(),
                "ready": { "type": "boolean" }, "draining": { "type": "boolean" },
            }),
            &["version", "uptime_s", "workers", "ready", "draining"],
        ),
        "Credentials": object(
            &json!({
                "store": text(), "connections": number(), "connections_wanted": number(),
                "breaker": { "enum": ["closed", "half-open", "open"] },
                "queued": number(), "in_flight": number(), "waiting": number(),
                "last_error": { "type": ["string", "null"] },
            }),
            &["store", "connections", "connections_wanted", "breaker", "queued", "in_flight", "waiting", "last_error"],
        ),
        "Forgotten": object(&json!({ "forgotten": number() }), &["forgotten"]),
        "Groups": object(&json!({ "groups": list("Group") }), &["groups"]),
        "Group": object(
            &json!({
                "name": text(),
                "algorithm": {
                    "enum": ["round-robin", "weighted", "call-id", "least-load", "priority"],
                },
                "members": list("Member"),
            }),
            &["name", "algorithm", "members"],
        ),
        "Member": object(
            &json!({
                "uri": text(), "weight": number(), "priority": number(),
                "state": { "enum": ["up", "failed", "drained"] },
                "failures": number(),
            }),
            &["uri", "weight", "priority", "state", "failures"],
        ),
        "Named": object(&json!({ "member": text() }), &["member"]),
        "Changed": object(&json!({ "group": text(), "member": reference("Member") }), &["group", "member"]),
        "Reload": object(
            &json!({
                "result": { "enum": ["reloaded", "partly", "refused"] },
                "taken": texts("Keys with new values that hold now."),
                "after_restart": texts("Keys with new values that hold after a restart."),
                "files": texts("Certificates, keys, authorities and ticket keys that were read again."),
                "errors": texts("What is wrong, with its place and a remedy; it stays as it was."),
                "warnings": texts("What works and should be looked at."),
            }),
            &["result", "taken", "after_restart", "files", "errors", "warnings"],
        ),
    })
}

fn object(properties: &Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn list(schema: &str) -> Value {
    json!({ "type": "array", "items": reference(schema) })
}

fn content(schema: &str) -> Value {
    json!({ "content": { "application/json": { "schema": reference(schema) } } })
}

fn response(description: &str, schema: &str) -> Value {
    let mut response = content(schema);
    response["description"] = description.into();
    response
}

fn wrong() -> Value {
    json!({ "$ref": "#/components/responses/Wrong" })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{TOKEN, ask, start_with};
    use super::*;
    use crate::serve::reload::{Outcome, Reloads};

    /// Every `$ref` below `value`.
    fn references<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
        match value {
            Value::Object(map) => {
                out.extend(map.get("$ref").and_then(Value::as_str));
                map.values().for_each(|value| references(value, out));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, out)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn what_it_points_to_is_there() {
        let document = document();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 10);
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("within the document");
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }

    /// Each page exists, responds with a status of the document, and has the promised keys.
    #[test]
    fn pages_are_as_it_says() {
        let (reloads, mut asked) = Reloads::new();
        let (runtime, address) = start_with(&Arc::default(), &[], reloads);
        runtime.spawn(async move {
            while let Some(answer) = asked.recv().await {
                let _ = answer.send(Outcome::refused(Vec::new()));
            }
        });
        let document = document();
        let served = ask(address, "GET /api/openapi.json", "", "");
        let (_, served) = served.split_once("\r\n\r\n").expect("a body");
        assert_eq!(serde_json::from_str::<Value>(served).expect("JSON"), document);
        for (path, item) in document["paths"].as_object().expect("paths") {
            for (method, operation) in item
                .as_object()
                .expect("an item")
                .iter()
                .filter(|(key, _)| *key != "parameters")
            {
                let names = ["{group}", "{source}", "{aor}"];
                let path = names
                    .iter()
                    .fold(path.clone(), |path, name| path.replace(name, "none"));
                let what = format!("{} {path}", method.to_uppercase());
                let answer = ask(address, &what, &format!("Authorization: Bearer {TOKEN}\r\n"), "");
                let status = answer.get(9..12).expect("a status");
                let mut described = &operation["responses"][status];
                assert!(described.is_object(), "{what}: {status}");
                if let Some(pointer) = described["$ref"].as_str() {
                    described = document.pointer(&pointer[1..]).expect("there");
                }
                let Some(schema) = described["content"]["application/json"]["schema"]["$ref"].as_str() else {
                    continue;
                };
                let schema = document.pointer(&schema[1..]).expect("there");
                let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
                let body: Value = serde_json::from_str(body).expect("JSON");
                for key in schema["required"].as_array().expect("a list") {
                    assert!(
                        body.get(key.as_str().expect("text")).is_some(),
                        "{what}: {key} in {body}"
                    );
                }
            }
            let asks = item.pointer("/post/security").or(item.pointer("/get/security"));
            assert_eq!(asks.is_none(), path.starts_with("/api/v1/"), "{path}");
        }
    }
}
