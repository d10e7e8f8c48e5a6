"""Build templates from images: skopeo fetches, umoci unpacks, buildah runs a Dockerfile.

Unpacking runs nothing of the image. The steps of a Dockerfile run in containers of buildah, with otherwise unused
user ids and, unless the recipe says otherwise, without a network.
"""

import re
import tarfile
from pathlib import Path

import anyio
import msgspec

from cloister.core.errors import HostError, UserError
from cloister.core.text import one_line
from cloister.sandbox.templates import root
from cloister.sandbox.templates.building import About, Build
from cloister.sandbox.templates.recipes import Dockerfile, Oci

_IMAGE = "image"
"""The image's name in the layout that is made of it, and that layout's directory."""

_BLOB_BYTES = 4_194_304
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENV_KEPT = 256
_IDS_FIRST = 0x6FFF0000
"""Just below the ids of sandboxes."""


class _Descriptor(msgspec.Struct, frozen=True):
    digest: str


class _Index(msgspec.Struct, frozen=True):
    manifests: tuple[_Descriptor, ...]


class _Manifest(msgspec.Struct, frozen=True):
    config: _Descriptor
    layers: tuple[_Descriptor, ...] = ()


class _Config(msgspec.Struct, frozen=True, rename="pascal"):
    env: tuple[str, ...] | None = None
    user: str | None = None


class _ImageFile(msgspec.Struct, frozen=True):
    config: _Config = _Config()


class ImageFacts(msgspec.Struct, frozen=True):
    """Metadata of an image."""

    digest: str
    env: dict[str, str]
    user: str | None


async def build_image(work: Build, recipe: Oci) -> About:
    """Fetch the image and unpack it."""
    work.need("skopeo", "skopeo")
    work.need("umoci", "umoci")
    source = await anyio.to_thread.run_sync(source_of, recipe.image)
    verify = "true" if recipe.tls else "false"
    work.tell(0.05, f"fetching {one_line(recipe.image, 80)}")
    argv = ["skopeo", "--insecure-policy", "--override-os=linux", "copy", "--retry-times=2"]
    await work.run([*argv, f"--src-tls-verify={verify}", "--", source, f"oci:{_IMAGE}:{_IMAGE}"])
    return await _unpack(work, recipe, "oci")


async def build_dockerfile(work: Build, recipe: Dockerfile) -> About:
    """Run the Dockerfile and unpack what it makes."""
    work.need("buildah", "buildah")
    work.need("umoci", "umoci")
    context = Path(recipe.context)
    if not await anyio.to_thread.run_sync(_is_inside, context, recipe.dockerfile):
        raise UserError("no_dockerfile", f"There is no {recipe.dockerfile} in {context}: give its directory.")
    # All state of buildah stays below the directory of the build.
    place = ["buildah", "--root=storage", "--runroot=run", "--storage-driver=vfs"]
    ids = f"0:{_IDS_FIRST}:65536"
    argv = [
        *(*place, "build", "--isolation=oci", f"--runtime={_runtime(work)}", "--format=oci", "--pull"),
        *(f"--userns-uid-map={ids}", f"--userns-gid-map={ids}", f"--tag={_IMAGE}"),
        f"--network={'host' if recipe.network else 'none'}",
        f"--tls-verify={'true' if recipe.tls else 'false'}",
        *((f"--target={recipe.target}",) if recipe.target else ()),
        *(f"--build-arg={name}={value}" for name, value in recipe.args.items()),
        *(f"--file={context / recipe.dockerfile}", str(context)),
    ]
    progress = re.compile(r"^STEP (\d+)/(\d+): (.*)")

    def hear(line: str) -> None:
        if step := progress.match(line):
            share = int(step[1]) / max(1, int(step[2]))
            work.report(min(0.8, 0.8 * share), one_line(step[3], 60))

    work.tell(0.0, "running the Dockerfile")
    await work.run(argv, hear)
    work.tell(0.8, "exporting the image")
    await work.run([*place, "push", _IMAGE, f"oci:{_IMAGE}:{_IMAGE}"])
    for name in ("storage", "run"):
        await work.remove(work.home / name)
    return await _unpack(work, recipe, "dockerfile")


def _is_inside(context: Path, name: str) -> bool:
    """Whether it is a file of the context: an untrusted link could lead to a file of this machine."""
    real = (context / name).resolve()
    return real.is_file() and real.is_relative_to(context.resolve())


def _runtime(work: Build) -> str:
    for name in ("runc", "crun"):
        try:
            return work.need(name, name)
        except HostError:
            continue
    raise HostError("no_runtime", "A Dockerfile needs runc or crun: run `apt-get install runc`.")


async def _unpack(work: Build, recipe: Oci | Dockerfile, kind: str) -> About:
    facts = image_facts(work.home / _IMAGE)
    work.tell(0.85, "unpacking")
    await work.run(["umoci", "raw", "unpack", f"--image={_IMAGE}:{_IMAGE}", "rootfs"])
    await work.remove(work.home / _IMAGE)
    work.tell(0.95, "adding the agent's user and directories")
    env = {**facts.env, **recipe.env}

    def finish() -> root.Settled:
        root.scrub(work.rootfs)
        user = recipe.user or facts.user
        return root.settle(work.rootfs, user, env.get("PATH", ""), must=recipe.user is not None)

    try:
        settled = await anyio.to_thread.run_sync(finish)
    except (OSError, RecursionError) as error:
        raise UserError(
            "bad_image", f"The image cannot become a template: {one_line(str(error))}."
        ) from error
    for name, there in (("git", settled.git), ("bash", settled.bash)):
        if not there:
            work.tell(None, f"the image has no {name}: {_LACKS[name]}")
    return About(
        kind=kind, env=env, home=settled.home, git=settled.git, bash=settled.bash, digest=facts.digest
    )


_LACKS = {"git": "no run can start from it", "bash": "shell command lines will fail"}


def source_of(image: str) -> str:
    """The name of an image for skopeo. Raises `UserError` (`no_image`)."""
    if "://" in image:
        if not image.startswith("docker://"):
            raise UserError(
                "no_image", f"{one_line(image)} is not an image: give registry/name:tag or a path."
            )
        return image
    if not image.startswith(("/", "./", "../", "~")):
        return f"docker://{image}"
    path = Path(image).expanduser()
    # A tag may follow the directory of a layout.
    folder, _, tag = image.rpartition(":")
    if not path.exists() and folder and Path(folder).is_dir():
        path = Path(folder)
    else:
        tag = ""
    if ":" in str(path):
        raise UserError("no_image", f"{one_line(image)} has a colon in its path: move it elsewhere.")
    if (path / "oci-layout").is_file():
        return f"oci:{path.absolute()}" + (f":{tag}" if tag else "")
    if path.is_file():
        return f"{_archive_kind(path)}:{path.absolute()}"
    raise UserError("no_image", f"{one_line(image)} is neither an OCI layout nor a tar file of an image.")


def _archive_kind(path: Path) -> str:
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.name.removeprefix("./") == "oci-layout":
                    return "oci-archive"
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise UserError(
            "no_image", f"{path} is not a tar file of an image: {one_line(str(error))}."
        ) from None
    return "docker-archive"


def image_facts(layout: Path) -> ImageFacts:
    """The metadata of the only image in a layout. Raises `UserError` (`bad_image`)."""
    try:
        index = msgspec.json.decode((layout / "index.json").read_bytes(), type=_Index)
        digest = index.manifests[0].digest
        manifest = msgspec.json.decode(_blob(layout, digest), type=_Manifest)
        file = msgspec.json.decode(_blob(layout, manifest.config.digest), type=_ImageFile)
    except (msgspec.MsgspecError, OSError, IndexError, ValueError) as error:
        raise UserError("bad_image", f"The image cannot be read: {one_line(str(error), 200)}.") from None
    env: dict[str, str] = {}
    for line in (file.config.env or ())[:_ENV_KEPT]:
        name, separator, value = line.partition("=")
        if separator and _ENV_NAME.fullmatch(name) and "\0" not in value:
            env[name] = value
    return ImageFacts(digest, env, file.config.user or None)


def _blob(layout: Path, digest: str) -> bytes:
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise ValueError("a digest of an unknown kind")
    path = layout / "blobs" / "sha256" / found[1]
    if path.lstat().st_size > _BLOB_BYTES:
        raise ValueError("its description is too large")
    return path.read_bytes()
