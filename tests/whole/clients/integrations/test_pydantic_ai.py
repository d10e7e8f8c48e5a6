"""Pydantic AI is among our own requirements: its workspace is tried in this process."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite
from tests.whole.e2e.conftest import Cloister

from cloister import AsyncClient
from cloister.integrations.pydantic_ai import CloisterBackend, CloisterCapability


@pytest.fixture
def client(command: Cloister) -> AsyncClient:
    return AsyncClient(data_dir=command.data_dir)


async def destroyed(client: AsyncClient, backend: WorkspaceBackend) -> None:
    assert backend.ref is not None
    await (await client.sandbox(backend.ref.id)).close()


@pytest.mark.anyio
async def test_a_run_works_in_a_sandbox_and_a_later_one_in_the_same(client: AsyncClient) -> None:
    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        calls = sum(isinstance(message, ModelResponse) for message in messages)
        return ModelResponse([TextPart("done")] if calls % 2 else [ToolCallPart("count", {})])

    agent = Agent(FunctionModel(model), capabilities=[CloisterCapability(client, ttl_seconds=300)])
    seen: list[str] = []

    @agent.tool
    async def count(ctx: RunContext[object]) -> str:  # pyright: ignore[reportUnusedFunction]
        ran = await ctx.workspace.run("echo x >> lines; wc -l < lines", shell=True)
        seen.append(ran.stdout.strip())
        return ran.stdout

    first = await agent.run("count")
    await agent.run("count", message_history=first.all_messages())
    assert seen == ["1", "2"]
    (sandbox,) = await client.sandboxes()
    await sandbox.close()
    with pytest.raises(WorkspaceUnavailableError):
        await CloisterBackend(client, ref=WorkspaceRef(provider="cloister", id=sandbox.id)).working_dir()
    with pytest.raises(ValueError, match="not a workspace"):
        CloisterBackend(client, ref=WorkspaceRef(provider="local", id="x"))


@pytest.mark.long(only=True)
class TestConformance(WorkspaceBackendSuite):
    """The suite that Pydantic AI publishes for backends."""

    @pytest.fixture
    async def backend(self, client: AsyncClient) -> AsyncIterator[WorkspaceBackend]:
        made = CloisterBackend(client, ttl_seconds=300)
        yield made
        if made.ref is not None:
            await destroyed(client, made)

    @pytest.fixture
    def fresh_backend(self, client: AsyncClient) -> Callable[[], WorkspaceBackend]:
        return lambda: CloisterBackend(client, ttl_seconds=300)

    @pytest.fixture
    def attach_backend(self, client: AsyncClient) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: CloisterBackend(client, ref=ref)

    @pytest.fixture
    def destroy_environment(self, client: AsyncClient) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        return lambda backend: destroyed(client, backend)
