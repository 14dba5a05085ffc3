"""API keys: every route but /health wants exactly one good key."""
import pytest

KEYS = ("first-key", "second-key")
ROUTES = [("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("POST", "/v1/responses"),
          ("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"), ("POST", "/tokenize"),
          ("POST", "/detokenize"), ("GET", "/tokenizer_info"), ("GET", "/v1/models"), ("GET", "/v1/models/bundled"),
          ("GET", "/metrics"), ("GET", "/version"), ("GET", "/ready"), ("GET", "/nothing"), ("POST", "/v1/nothing"),
          ("DELETE", "/v1/models"), ("GET", "//metrics"), ("GET", "/metrics/"), ("GET", "/%6detrics"),
          ("GET", "/v1/../metrics")]


@pytest.fixture(scope="module")
def server(running):
    with running("--threads", 1, "--api-key", KEYS[0], "--api-key", KEYS[1]) as server:
        yield server


@pytest.mark.parametrize("method, path", ROUTES)
def test_every_route_is_behind_the_keys(server, method, path):
    headers = [{}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "},
               {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {KEYS[0]}x"},
               {"Authorization": f"Bearer {KEYS[0][:-1]}"}, {"Authorization": f"Basic {KEYS[0]}"},
               {"x-api-key": "wrong"}, {"x-api-key": KEYS[0], "Authorization": "Bearer wrong"},
               {"Authorization": f"Bearer {KEYS[0]}, Bearer {KEYS[1]}"}, {"X-Forwarded-For": "127.0.0.1"}]
    for header in headers:
        reply = server.request(method, path, b"{}" if method == "POST" else None, headers=header)
        assert reply.status in (400, 401) if ".." in path or path.startswith("//") else reply.status == 401, (header, reply)
        assert KEYS[0].encode() not in reply.body and len(reply.body) < 1024
    good = server.request(method, path, b"{}" if method == "POST" else None,
                          headers={"Authorization": f"Bearer {KEYS[1]}"})
    assert good.status != 401


def test_health_is_open(server):
    assert server.get("/health").status == 200
    assert server.get("/health", headers={"Authorization": "Bearer wrong"}).status == 200


def test_both_keys_both_headers(server):
    for key in KEYS:
        for header in ({"Authorization": f"Bearer {key}"}, {"x-api-key": key}):
            assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers=header).status == 200


def cached(server, key, prompt, **fields):
    answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields},
                         headers={"Authorization": f"Bearer {key}"}).json
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("fields", [{}, {"cache_salt": "s"}])
def test_each_key_has_prefixes_of_its_own(server, fields):
    """How many tokens were cached tells nobody what another key's holder has sent."""
    prompt = [40 + len(fields)] * 600
    assert [cached(server, KEYS[0], prompt, **fields) > 0 for _ in range(2)] == [False, True]
    assert [cached(server, KEYS[1], prompt, **fields) > 0 for _ in range(2)] == [False, True]


def test_keys_share_prefixes_where_the_operator_says_so(running):
    with running("--threads", 1, "--api-key", KEYS[0], "--api-key", KEYS[1],
                 "--share-prefix-cache-between-keys") as server:
        prompt = [42] * 600
        assert [cached(server, key, prompt) > 0 for key in KEYS] == [False, True]
        assert cached(server, KEYS[1], prompt, cache_salt="s") == 0


def test_a_key_given_twice(server):
    from server import raw
    for other in KEYS:
        head = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEYS[0]}\r\n" \
               f"Authorization: Bearer {other}\r\nConnection: close\r\n\r\n"
        assert raw(server, head.encode()).startswith(b"HTTP/1.1 4")


def test_keys_stay_out_of_the_logs(server):
    server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"Authorization": f"Bearer {KEYS[0]}"})
    server.post("/v1/completions", {"prompt": "a"}, headers={"Authorization": "Bearer guessed-key"})
    for log in (server.log, server.log.parent / "access.log"):
        text = log.read_text()
        assert not any(word in text for word in (*KEYS, "guessed-key"))
