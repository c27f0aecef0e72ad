"""The image that holds the module alone, and the server that an init container gives it to."""

import os
import platform
import shutil
import subprocess

import pytest
import yaml

from docs.pages import blocks, page_named
from support.recipe import PACKAGING, Recipe
from support.server import Server
from support.waiting import eventually

HERE = "tests/distribution/packages/test_module_image.py"
LIBRARIES = ("gnu", "musl")


@pytest.fixture
def image(packages, tmp_path):
    """A folder with what the image adds to its base: made by the recipe's commands, of all the release's tarballs."""
    recipe, places = Recipe("Containerfile.module"), {"/release": tmp_path / "release", "/image": tmp_path / "unpacked"}
    places["/release"].mkdir()
    for library in LIBRARIES:
        shutil.copy(packages.tarball(f"{platform.machine()}-unknown-linux-{library}"), places["/release"])
    for command in recipe.commands:
        for place, folder in places.items():
            command = command.replace(place, str(folder))
        subprocess.run(["sh", "-ec", command], check=True)
    (source, target), = recipe.taken.items()
    assert (source, target) == ("/image/", "/swlimit/")
    return places["/image"].rename(tmp_path / "swlimit")


def of_kind(kind):
    found, = [manifest for manifest in yaml.safe_load_all((PACKAGING / "kubernetes/module.yaml").read_text())
              if manifest["kind"] == kind]
    return found


def test_an_init_container_gives_the_module_to_a_server(image, packages, tmp_path):
    """With the command, the user and the arguments of the manifest; only where the folders are is this machine's."""
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (init,), (container,) = pod["initContainers"], pod["containers"]
    modules = tmp_path / "modules"
    modules.mkdir()
    own = ()
    if os.geteuid() == 0:
        user = pod["securityContext"]["runAsUser"]
        own = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")
        os.chown(modules, user, user)
        for folder in (tmp_path, *list(tmp_path.parents)[:3]):
            folder.chmod(folder.stat().st_mode | 0o11)

    def here(words):
        folders = {"/swlimit/": f"{image}/", "/modules": str(modules)}
        return [next((word.replace(place, there) for place, there in folders.items() if word.startswith(place)), word)
                for word in words]

    assert init["command"] == [*Recipe("Containerfile.module").command]
    for _ in range(2):  # before every start
        subprocess.run([*own, *here(init["command"])], check=True)
    mounted = {mount["mountPath"]: mount["name"] for mount in (*init["volumeMounts"], *container["volumeMounts"])}
    assert mounted["/modules"] in {volume["name"] for volume in pod["volumes"]}
    arguments = here(container["args"])
    module = arguments[arguments.index("--loadmodule") + 1]
    with Server(module=module) as server:
        assert server.cli(*container["readinessProbe"]["exec"]["command"][1:]).split("\n")[:2] == ["1", "1"]
        eventually(lambda: f"swlimit_version:{packages.version}" in server.cli("INFO", "swlimit"))


def test_the_image_holds_a_module_for_each_c_library(image):
    assert {path.name for path in image.iterdir()} == {*LIBRARIES}
    for library in LIBRARIES:
        assert (image / library / "swlimit.so").stat().st_mode & 0o777 == 0o755
    assert (image / "gnu/swlimit.so").read_bytes() != (image / "musl/swlimit.so").read_bytes()


def test_what_the_page_shows_is_the_manifest():
    """The parts that charts and operators take."""
    block, = [block for block in blocks(page_named("install.md")) if block.comment == f"run by {HERE}"]
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    shown = yaml.safe_load(block.text)
    (init,), (container,) = pod["initContainers"], pod["containers"]
    assert shown["initContainers"] == [{key: init[key] for key in ("name", "image", "command", "volumeMounts")}]
    assert shown["extraVolumeMounts"] == [mount for mount in container["volumeMounts"] if mount["name"] == "modules"]
    assert shown["extraVolumes"] == [volume for volume in pod["volumes"] if volume["name"] == "modules"]
