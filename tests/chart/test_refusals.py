"""Values that are each right and wrong together are refused in a sentence, before anything is made."""

from __future__ import annotations

import re

import pytest

from tests.support.service.chart import Chart, Json, nested, sentences

_S3: Json = {"url": "s3://logs/prod", "existingSecret": "keys"}
_TIGHT: Json = {"drainSeconds": 5, "terminationGracePeriodSeconds": 15}
_FOLLOW: Json = {"enabled": True, "namesrv": "10.0.0.1:9876", "brokers": ["broker-a"]}
#: What is set, and words of the sentence that answers it.
_REFUSED: list[tuple[Json, str]] = [
    ({"fullnameOverride": "a" * 41}, "has 41 characters"),
    ({"fullnameOverride": "Logs"}, 'name "Logs" is no name of a Service'),
    ({"cold": {"url": "s3://", "existingSecret": "keys"}}, "a cold tier without a bucket"),
    ({"cold": {"url": "s3:///prefix", "existingSecret": "keys"}}, "a cold tier without a bucket"),
    ({"cold": {"url": "s3://Logs/x", "existingSecret": "keys"}}, "a cold tier without a bucket"),
    ({"cold": {"url": "s3://logs"}}, "Nothing says who may use the bucket"),
    ({"cold": {**_S3, "roleAnnotations": {"a": "b"}}}, "Both cold.existingSecret and cold.roleAnnotations"),
    ({"cold": {**_S3, "ambient": True}}, "Both cold.existingSecret and cold.ambient"),
    (
        {"cold": {"url": "s3://logs", "roleAnnotations": {"a": "b"}}, "serviceAccount": {"create": False}},
        "serviceAccount.create=false does not make",
    ),
    ({"cold": {"existingSecret": "keys"}}, "Credentials are given, and no bucket"),
    ({"cold": {"url": "file:///archive"}}, "would be lost with it"),
    ({"cold": {"url": "file:///archive", "existingClaim": "a"}, "stores": {"replicas": 2}}, "is for one pod"),
    ({"cold": {"url": "file:///archive", "existingClaim": "a"}, "queriers": {"enabled": True}}, "is for one pod"),
    ({"cold": {**_S3, "existingClaim": "a"}}, "cold.existingClaim is for an archive in a directory"),
    ({"stores": {"replicas": 2}}, "2 stores without a cold tier that they share"),
    (
        {"cold": _S3, "stores": {"replicas": 3, "volume": {"existingClaim": "old"}}},
        '3 stores on the one claim "old" would be more than one writer on one volume',
    ),
    ({"stores": {"volume": {"accessMode": "ReadWriteMany"}}}, "a store is the only writer of its volume"),
    ({"stores": {"volume": {"accessMode": "ReadOnlyMany"}}}, "a store is the only writer of its volume"),
    ({"stores": {"restore": True}}, "stores.restore makes stores from their archives, and there is none"),
    (
        {"cold": _S3, "stores": {"restore": True, "volume": {"existingClaim": "old"}}},
        "stores.restore needs an empty volume",
    ),
    ({"follow": _FOLLOW}, "keeps what they remove, which needs an archive"),
    ({"cold": _S3, "follow": {"enabled": True}}, "Which brokers are followed is not said"),
    ({"cold": _S3, "follow": {**_FOLLOW, "brokers": []}}, "Which brokers are followed is not said"),
    ({"cold": _S3, "follow": _FOLLOW, "stores": {"replicas": 2}}, "2 pods would follow the same brokers"),
    ({"cold": _S3, "follow": _FOLLOW, "queriers": {"enabled": True}}, "stores that follow are not in it"),
    ({"cold": _S3, "follow": {"brokers": ["a"]}}, "Brokers are named, and nothing follows them"),
    ({"queriers": {"enabled": True}}, "Queriers read archives and find stores by them, and there is none"),
    (
        {"cold": _S3, "stores": {"replicas": 2}, "settings": {"cold": {"single_writer": True}}},
        "one process writes to the bucket's prefix, and several pods would",
    ),
    ({"cold": _S3, "stores": {"settings": {"cold": {"single_writer": True}}}}, "no job writes to the bucket's prefix"),
    ({"jobs": {"verify": {"enabled": True}}}, "jobs.verify works on an archive in a bucket"),
    ({"jobs": {"expire": {"enabled": True}}}, "jobs.expire works on an archive in a bucket"),
    ({"jobs": {"rebuild": {"enabled": True}}}, "jobs.rebuild works on an archive in a bucket"),
    ({"stores": _TIGHT}, "stores.terminationGracePeriodSeconds is 15"),
    ({"queriers": _TIGHT}, "queriers.terminationGracePeriodSeconds is 15"),
    ({"queriers": {"autoscaling": {"enabled": True}}}, "queriers.autoscaling has nothing to scale"),
    (
        {"cold": _S3, "queriers": {"enabled": True, "autoscaling": {"enabled": True, "minReplicas": 11}}},
        "minReplicas is 11 and above maxReplicas, which is 10",
    ),
    (
        {
            "cold": _S3,
            "queriers": {"enabled": True, "autoscaling": {"enabled": True}, "resources": {"requests": {"cpu": None}}},
        },
        "goes by percents of the CPU request",
    ),
    ({"ingress": {"enabled": True}}, "An Ingress without a name"),
    ({"tls": {"clientCaKey": "ca.crt"}}, "tls.clientCaKey is a key of the secret"),
    ({"tokens": {"nodeKey": "admin-token"}}, "have to be five different ones"),
    ({"cold": _S3, "stores": {"replicas": 2}}, "without TLS anybody on the way could read the tokens"),
    ({"cold": _S3, "queriers": {"enabled": True}}, "without TLS anybody on the way could read the tokens"),
    ({"ingress": {"enabled": True, "hosts": ["a.example.com"]}}, "lets in the pods of this namespace alone"),
    ({"service": {"type": "LoadBalancer"}}, "lets in the pods of this namespace alone"),
    ({"monitoring": {"serviceMonitor": {"enabled": True}}}, "name it in networkPolicy.storeClients"),
]
#: What the schema alone refuses, and where.
_MISTYPED: list[tuple[Json, str]] = [
    ({"store": {}}, "additional properties 'store' not allowed"),
    (nested("stores.replica", 2), "/stores"),
    (nested("stores.replicas", 0), "/stores/replicas"),
    (nested("stores.replicas", "two"), "/stores/replicas"),
    (nested("cold.url", "gs://logs"), "/cold/url"),
    (nested("cold.endpoint", "minio:9000"), "/cold/endpoint"),
    (nested("image.digest", "sha256:abc"), "/image/digest"),
    (nested("image.pullPolicy", "Sometimes"), "/image/pullPolicy"),
    (nested("listen.port", 70000), "/listen/port"),
    (nested("stores.volume.size", "fifty"), "/stores/volume/size"),
    (nested("stores.drainSeconds", 0), "/stores/drainSeconds"),
    (nested("jobs.merge.schedule", "daily"), "/jobs/merge/schedule"),
    (nested("settings.hot.retentoin_ms", 1), "/settings/hot"),
    (nested("settings.serve.port", 1), "/settings/serve"),
    (nested("stores.settings.hot.retention_ms", -1), "/stores/settings/hot/retention_ms"),
    (nested("queriers.settings.cluster.refresh_ms", 1), "/queriers/settings/cluster/refresh_ms"),
]


@pytest.mark.parametrize(("values", "words"), _REFUSED, ids=[words for _, words in _REFUSED])
def test_refused_in_a_sentence(chart: Chart, values: Json, words: str) -> None:
    said = chart.refusal(values)
    line = next((line for line in said.split("\n") if words in line), None)
    assert line is not None, said
    assert re.match(r"^[a-zA-Z0-9].*\.$", line)


@pytest.mark.parametrize(("values", "words"), _MISTYPED, ids=[words for _, words in _MISTYPED])
def test_refused_by_the_schema(chart: Chart, values: Json, words: str) -> None:
    said = chart.refusal(values)
    assert "don't meet the specifications of the schema" in said
    assert words in said


def test_every_sentence_of_the_templates_has_its_case() -> None:
    asked = [words for _, words in _REFUSED]
    for sentence in sentences():
        assert any(re.search(_loosely(words), sentence) for words in asked), sentence


def test_what_is_wrong_is_said_all_at_once(chart: Chart) -> None:
    said = chart.refusal({"stores": {"replicas": 2, "restore": True}, "ingress": {"enabled": True}})
    for words in ("2 stores without", "stores.restore makes", "An Ingress without a name"):
        assert words in said


def test_a_long_name_of_a_release_is_refused_and_not_cut(chart: Chart) -> None:
    assert "set fullnameOverride" in chart.refusal({}, release="r" * 33)


def _loosely(words: str) -> str:
    """The words as they would stand in a format: what a value may have been is a hole."""
    holes = re.sub(r'\\"[^"]*\\"|"[^"]*"', "%q", words)
    holes = re.sub(r"\b(stores|queriers)(?=\.termination)", "%s", holes)
    holes = re.sub(r"(?<=jobs\.)(verify|expire|rebuild)", "%s", holes)
    holes = re.sub(r"\bcold\.\w+ and cold\.\w+", "%s", holes)
    return re.escape(re.sub(r"\b\d+\b", "%d", holes))
