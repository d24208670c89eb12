"""Holds the Kubernetes manifests to the schemas of Kubernetes, and to each other. No network."""

import json
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

HERE = Path(__file__).resolve().parent.parent / "kubernetes"
# The oldest and the newest release that the manifests are for.
VERSIONS = ["1.30", "1.35"]
# Kinds that Kubernetes itself does not know, each with a schema of its own.
OTHERS = {
    "PyTorchJob": HERE / "schemas/pytorchjob.json",
    "Kustomization": HERE / "schemas/kustomization.json",
}


def documents(path: Path) -> list[dict]:
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def check(document: dict) -> None:
    """Raises what is wrong with a document."""
    kind = document["kind"]
    if kind not in OTHERS:
        for version in VERSIONS:
            kubernetes_validate.validate(document, version, strict=True)
        return
    schema = json.loads(OTHERS[kind].read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    # Its pods are those of Kubernetes.
    for name, replica in document.get("spec", {}).get("pytorchReplicaSpecs", {}).items():
        metadata = {"name": name.lower()}
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": metadata}
        check(template | {"template": replica["template"]})


def strays(all_documents: dict[str, list[dict]]) -> list[str]:
    """What no schema sees: names that nothing has."""
    found = []
    (kustomization,) = all_documents["kustomization.yaml"]
    listed = set(kustomization["resources"])
    for name in listed - all_documents.keys():
        found.append(f"kustomization.yaml: there is no {name}")
    for name in all_documents.keys() - listed - {"kustomization.yaml"}:
        if not name.startswith("example-"):
            found.append(f"kustomization.yaml does not list {name}")
    if found:
        return found
    by_kind = {each["kind"]: each for name in listed for each in all_documents.get(name, [])}
    daemon, service = by_kind["DaemonSet"]["spec"], by_kind["Service"]["spec"]
    labels = daemon["template"]["metadata"]["labels"]
    for who, selector in [
        ("the DaemonSet", daemon["selector"]["matchLabels"]),
        ("the Service", service["selector"]),
    ]:
        if not selector.items() <= labels.items():
            found.append(f"{who} selects {selector}, and the pods have {labels}")
    pod = daemon["template"]["spec"]
    volumes = {each["name"] for each in pod["volumes"]}
    for container in pod["containers"]:
        for mount in container["volumeMounts"]:
            if mount["name"] not in volumes:
                found.append(f"no volume has the name {mount['name']}")
    names = {(kind, each["metadata"]["name"]) for kind, each in by_kind.items()}
    for volume in pod["volumes"]:
        if "configMap" in volume and ("ConfigMap", volume["configMap"]["name"]) not in names:
            found.append(f"there is no ConfigMap {volume['configMap']['name']}")
    if (need := ("PriorityClass", pod["priorityClassName"])) not in names:
        found.append(f"there is no {need[0]} {need[1]}")
    return found


def main() -> int:
    files = sorted(HERE.glob("*.yaml"))
    all_documents = {path.name: documents(path) for path in files}
    wrong = []
    for name, parts in all_documents.items():
        for document in parts:
            try:
                check(document)
            except (jsonschema.ValidationError, kubernetes_validate.ValidationError) as error:
                place = "/".join(str(part) for part in error.path)
                wrong.append(f"{name}: {document['kind']} {place}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError as error:
                wrong.append(f"{name}: {document['kind']}: {error}")
    wrong += [] if wrong else strays(all_documents)
    for line in wrong:
        print(f"error: {line}", file=sys.stderr)
    count = sum(map(len, all_documents.values()))
    print(f"{count} manifests in {len(files)} files, {len(wrong)} faults")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
