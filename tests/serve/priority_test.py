"""--scheduling-policy: who may choose a priority, and who runs first then."""
CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
LONG = {"prompt": "go", "max_tokens": 30_000, "ignore_eos": True}


def test_without_the_flag_one_is_refused(small):
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "a", "max_tokens": 1})):
        for priority in (-1, 1):
            reply = small.post(path, {**body, "priority": priority})
            assert reply.status == 400 and reply.error["param"] == "priority", reply
        assert small.post(path, {**body, "priority": 0}).status == 200


def test_with_it_lower_ones_run_first(running, small_model):
    with running("--threads", 1, "--max-num-seqs", 1, "--scheduling-policy", "priority", model=small_model) as server:
        first = server.open_stream("/v1/completions", **LONG)
        next(first)
        waiting = {}
        for priority in (3, -2, 0):
            waiting[priority] = server.open_stream("/v1/completions", priority=priority, **LONG)
            server.wait_metric("num_requests_waiting", len(waiting))
        first.reset()
        for priority in (-2, 0, 3):
            stream = waiting.pop(priority)
            next(stream)  # it runs, and the others wait
            server.wait_metric("num_requests_waiting", len(waiting), seconds=2)
            stream.reset()
        server.wait_metric("num_requests_running", 0)
