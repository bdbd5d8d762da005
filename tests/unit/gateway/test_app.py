"""Routes other than answers, and the shape of every error."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from tests.unit.gateway.running_gateway import MODEL, RunningGateway


def test_live_says_only_that_the_process_answers(http: httpx.Client, gateway: RunningGateway) -> None:
    gateway.view.current = replace(gateway.view.current, ready=False)
    assert http.get("/health/live").status_code == 200


def test_ready_follows_the_cluster(http: httpx.Client, gateway: RunningGateway) -> None:
    assert http.get("/health/ready").json() == {"status": "ready"}
    gateway.view.current = replace(gateway.view.current, ready=False, missing_layers=((0, 4), (8, 16)))
    response = http.get("/health/ready")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "5"
    assert "[0, 4), [8, 16)" in response.json()["error"]["message"]


def test_not_ready_without_missing_layers_says_that_no_token_was_made(
    http: httpx.Client, gateway: RunningGateway
) -> None:
    gateway.view.current = replace(gateway.view.current, ready=False)
    assert "no token" in http.get("/health/ready").json()["error"]["message"]


def test_admin_status_shows_the_cluster_to_this_machine(http: httpx.Client) -> None:
    status = http.get("/admin/status").json()
    assert status["epoch"] == 3
    assert [worker["pid"] for worker in status["workers"]] == [4711, 4712]
    assert status["workers"][0]["compute_ms"] == 3.25
    assert status["workers"][1]["compute_ms"] is None


@pytest.mark.parametrize(
    "headers", [{"x-forwarded-for": "10.0.0.9"}, {"forwarded": "for=10.0.0.9"}, {"host": "evil.example:8000"}]
)
def test_admin_status_is_refused_to_others(http: httpx.Client, headers: dict[str, str]) -> None:
    response = http.get("/admin/status", headers=headers)
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "local_only"


def test_root_points_to_the_api(http: httpx.Client) -> None:
    response = http.get("/")
    assert response.headers["content-type"].startswith("text/plain")
    assert MODEL in response.text
    assert "/v1" in response.text


@pytest.mark.parametrize(
    "path", ["/v1/embeddings", "/v1/models/", "/docs", "/v1/chat/completions/x", "/é%00"]
)
def test_unknown_paths_have_openais_shape(http: httpx.Client, path: str) -> None:
    response = http.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.headers["x-request-id"]


def test_a_wrong_method_has_openais_shape_and_names_the_right_one(http: httpx.Client) -> None:
    response = http.get("/v1/chat/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["code"] == "wrong_method"


def test_an_absent_model_lists_the_served_ones(http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"
    assert MODEL in response.json()["error"]["message"]


def test_an_empty_prompt_is_refused(http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={"model": MODEL, "prompt": ""})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


def test_request_ids_differ(http: httpx.Client) -> None:
    assert http.get("/").headers["x-request-id"] != http.get("/").headers["x-request-id"]
