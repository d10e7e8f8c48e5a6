"""`cloister doctor`: check whether a run can start on this machine, and how to fix it if not."""

import typer

from cloister.cli.options import AsJson, local_only, put, put_json, settings_of


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Check this machine; exit 0 if a run can start, else 3."""
    import anyio

    from cloister.cli.checkup import checkup

    local_only(ctx, "doctor")

    findings = anyio.run(checkup, settings_of(ctx))
    ready = all(finding.ok or not finding.needed for finding in findings)
    if as_json:
        put_json({"ready": ready, "findings": findings})
    else:
        for finding in findings:
            mark = "ok" if finding.ok else "MISSING" if finding.needed else "note"
            put(f"{mark:<8} {finding.name:<10} {finding.found}")
            if finding.fix and not finding.ok:
                put(f"{'':<19} fix: {finding.fix}")
        put("A run can start." if ready else "A run cannot start yet: see MISSING above.")
    if not ready:
        raise typer.Exit(3)
