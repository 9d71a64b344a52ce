"""The OpenAPI document says of every route which parameters it takes: those that it reads, and no others."""

import re
from typing import Any

from server_helpers import House, Serving


async def document(house: House) -> Any:
    async with house.http.get("/openapi.json") as response:
        return await response.json()


def parameters(operation: Any, where: str) -> dict[str, Any]:
    return {one["name"]: one for one in operation.get("parameters", ()) if one["in"] == where}


async def test_the_query_parameters_of_every_route_are_described(serving: Serving) -> None:
    """A route that refuses a parameter names those it knows: the document must name the same."""
    async with serving() as house:
        told = {}
        for path, operations in (await document(house))["paths"].items():
            if operation := operations.get("get"):
                url = f"{re.sub(r'{[^}]*}', 'x', path)}?nonsense=1"
                async with house.http.get(url) as response:
                    if response.status != 400:
                        continue  # one of OpenAI's, or open to all: it takes anything and reads nothing
                    message = (await response.json())["error"]["message"]
                known = re.search(r"here; known: (.*)\.$", message)
                told[path] = (known[1].split(", ") if known else [], list(parameters(operation, "query")))
    assert {"/v1/sessions", "/v1/sessions/{session_id}", "/v1/sessions/{session_id}/events"} <= told.keys()
    for path, (known_names, described) in told.items():
        assert sorted(described) == sorted(known_names), path


async def test_a_parameter_comes_with_a_sentence_and_a_schema_that_holds(serving: Serving) -> None:
    async with serving() as house:
        paths = (await document(house))["paths"]
        listing = parameters(paths["/v1/sessions"]["get"], "query")
        assert all(one["description"] and one["required"] is False for one in listing.values())
        assert listing["state"]["schema"]["enum"][:3] == ["INITED", "RESEARCHING", "WAITING_FOR_CLARIFICATION"]
        fitting = {
            "state": listing["state"]["schema"]["enum"][-1],
            "conversation_id": "a.b:c@d-e_1",
            "since": listing["since"]["schema"]["example"],
            "until": listing["until"]["schema"]["example"],
            "limit": str(listing["limit"]["schema"]["maximum"]),
        }
        assert re.search(listing["conversation_id"]["schema"]["pattern"], fitting["conversation_id"])
        async with house.http.get("/v1/sessions", params=fitting) as response:
            assert response.status == 200, await response.text()
        most = int(fitting["limit"])
        for wrong in ({"state": "inited"}, {"conversation_id": ".."}, {"limit": str(most + 1)}, {"since": "today"}):
            async with house.http.get("/v1/sessions", params=wrong) as response:
                assert response.status == 400, wrong
        assert not re.search(listing["conversation_id"]["schema"]["pattern"], "..")
        following = paths["/v1/sessions/{session_id}/events"]["get"]
        assert list(parameters(following, "path")) == ["session_id"]
        assert list(parameters(following, "header")) == ["Last-Event-ID"]
