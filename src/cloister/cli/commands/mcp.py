"""`cloister mcp`: runs and sandboxes for editors and agents that speak MCP."""

import typer

from cloister.cli.client.open import perform


def mcp(ctx: typer.Context) -> None:
    """Serve runs and sandboxes over MCP on stdin and stdout, for an editor or an agent that starts this command.

    A server is started in the background if none runs, so that runs go on when the editor ends.
    """
    from cloister.app.mcp.serve import serve_stdio

    perform(ctx, serve_stdio, serve=True)
