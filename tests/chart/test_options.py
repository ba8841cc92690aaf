"""Every value has an effect, and no other than its own."""

from __future__ import annotations

import re

import pytest

from docs.tools.chart_files import values_of
from tests.support.service.chart import CHART, Chart, Json, changed, nested

#: Everything that has objects of its own is there, with a secret of the user's, so that nothing is drawn.
_BASE: Json = {
    "cold": {"url": "s3://logs/prod", "existingSecret": "keys"},
    "stores": {"replicas": 2},
    "queriers": {"enabled": True},
    "tokens": {"existingSecret": "own-tokens"},
    "tls": {"existingSecret": "certificates"},
    "ingress": {"enabled": True, "hosts": ["logs.example.com"]},
    "networkPolicy": {
        "clients": [{"podSelector": {"matchLabels": {"app": "shop"}}}],
        "storeClients": [{"podSelector": {}}],
    },
    "jobs": {name: {"enabled": True} for name in ("merge", "verify", "expire", "rebuild")},
    "monitoring": {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRule", "dashboard")},
}
_BROKERS: Json = {"namesrv": "10.0.0.1:9876", "brokers": ["broker-a"]}
_DIGEST = "sha256:" + "0" * 64
_STORE, _QUERIER, _JOB = "StatefulSet/", "Deployment/", "CronJob/"
_TEST = "Pod/"
_SUMS = r"(StatefulSet|Deployment)/.*checksum/config$"
_SECRETS = r"(StatefulSet|Deployment)/.*checksum/secrets$"
_TOML = r"ConfigMap/tl-tierlog\.data\.(stores|queriers)\.toml"
_ENV = r".*\.env\["
_WITHOUT_TLS = [
    _TOML, _SUMS, r".*volumes\[tls\]", r".*volumeMounts\[tls\]", r".*[pP]robe.*scheme", rf".*{_ENV}TIERLOG_",
    rf"{_TEST}{_ENV}FRONT", r"ServiceMonitor/",
]  # fmt: skip
#: Value, what it is set to (with what else is needed), and where renderings may then differ: all of these do.
_EFFECTS: dict[str, tuple[object, list[str]] | tuple[object, list[str], Json]] = {
    "image.repository": ("r.example.com/tierlog", [f"{_STORE}.*image", f"{_QUERIER}.*image", f"{_TEST}.*image"]),
    "image.tag": ("1", [f"{_STORE}.*image", f"{_QUERIER}.*image", f"{_TEST}.*image"]),
    "image.digest": (_DIGEST, [f"{_STORE}.*image", f"{_QUERIER}.*image", f"{_TEST}.*image"]),
    "image.pullPolicy": ("Always", [f"{_STORE}.*imagePullPolicy", f"{_QUERIER}.*imagePull", f"{_TEST}.*imagePull"]),
    "imagePullSecrets": (["r"], [f"{kind}.*imagePullSecrets" for kind in (_STORE, _QUERIER, _JOB, _TEST)]),
    "fullnameOverride": ("other", [".*"]),
    "commonLabels": ({"team": "a"}, [r".*labels\.team"]),
    "settings": ({"hot": {"retention_ms": 86_400_000}}, [_TOML, _SUMS]),
    "listen.host": ("::", [rf"{_STORE}.*\.args", rf"{_QUERIER}.*\.args"]),
    "listen.port": (
        9000,
        [r"Service/.*port", r".*containerPort", r".*containers.*\.args", rf"{_STORE}{_ENV}", rf"{_TEST}{_ENV}"],
    ),
    "cold.url": ("s3://logs/test", [rf"{_STORE}.*\.args", rf"{_QUERIER}.*\.args", rf"{_JOB}.*\.args"]),
    "cold.endpoint": (
        "http://minio:9000",
        [_TOML, _SUMS, rf"{_JOB}{_ENV}TIERLOG_S3_ENDPOINT", r"NetworkPolicy/.*egress"],
    ),
    "cold.region": ("eu-central-1", [rf"{kind}{_ENV}" for kind in (_STORE, _QUERIER, _JOB)]),
    "cold.existingSecret": ("others", [_SECRETS, rf"{_JOB}{_ENV}AWS", rf"{_STORE}{_ENV}AWS", rf"{_QUERIER}{_ENV}AWS"]),
    "cold.accessKeyIdKey": ("id", [rf"{kind}{_ENV}AWS_ACCESS_KEY_ID" for kind in (_STORE, _QUERIER, _JOB)]),
    "cold.secretAccessKeyKey": ("key", [rf"{kind}{_ENV}AWS_SECRET" for kind in (_STORE, _QUERIER, _JOB)]),
    "cold.sessionTokenKey": ("token", [rf"{kind}{_ENV}AWS_SESSION_TOKEN" for kind in (_STORE, _QUERIER, _JOB)]),
    "cold.roleAnnotations": (
        {"role": "arn"},
        [r"ServiceAccount/.*annotations\.role", rf".*{_ENV}AWS_", _SECRETS, r"NetworkPolicy/.*egress"],
        {"cold": {"existingSecret": ""}},
    ),
    "cold.ambient": (
        True,
        [rf".*{_ENV}AWS_", _SECRETS, r"NetworkPolicy/.*egress"],
        {"cold": {"existingSecret": ""}},
    ),
    "cold.existingClaim": (
        "archive",
        [r"StatefulSet/.*archive", r".*"],  # without queriers and jobs: a store of its own
        {
            "cold": {"url": "file:///archive", "existingSecret": ""},
            "stores": {"replicas": 1},
            "queriers": {"enabled": False},
            "jobs": {name: {"enabled": False} for name in ("verify", "expire", "rebuild")},
        },
    ),
    "stores.replicas": (3, [rf"{_STORE}.*\.replicas", r"CronJob/tl-tierlog-(expire|rebuild)-2", rf"{_TEST}.*\.args"]),
    "stores.settings": ({"hot": {"retention_ms": 1}}, [r"ConfigMap/.*stores\.toml", rf"{_STORE}.*checksum/config"]),
    "stores.restore": (True, [rf"{_STORE}.*\.args"]),
    "stores.address": ("http://$(POD_IP):8080", [rf"{_STORE}{_ENV}TIERLOG_CLUSTER_ADDRESS"]),
    "stores.volume.size": ("1Gi", [rf"{_STORE}.*requests\.storage"]),
    "stores.volume.storageClass": ("fast", [rf"{_STORE}.*storageClassName"]),
    "stores.volume.accessMode": ("ReadWriteOncePod", [rf"{_STORE}.*accessModes"]),
    "stores.volume.existingClaim": (
        "old",
        [rf"{_STORE}.*volumeClaimTemplates", rf"{_STORE}.*volumes\[data\]", r".*"],
        {"stores": {"replicas": 1}},
    ),
    "stores.volume.selector": ({"matchLabels": {"a": "b"}}, [rf"{_STORE}.*selector\.matchLabels\.a"]),
    "stores.volume.annotations": ({"a": "b"}, [rf"{_STORE}.*volumeClaimTemplates.*annotations\.a"]),
    "stores.startupSeconds": (60, [rf"{_STORE}.*startupProbe\.failureThreshold"]),
    "stores.podManagementPolicy": ("OrderedReady", [rf"{_STORE}.*podManagementPolicy"]),
    "stores.updatePartition": (1, [rf"{_STORE}.*partition"]),
    "stores.podDisruptionBudget.enabled": (False, [r"PodDisruptionBudget/tl-tierlog-store"]),
    "follow.enabled": (True, [rf"{_STORE}.*\.args", rf"{_ENV}TIERLOG_CLUSTER_ADDRESS"], {"follow": _BROKERS}),
    "follow.namesrv": ("10.0.0.2:9876", [rf"{_STORE}.*\.args"]),
    "follow.brokers": (["broker-b"], [rf"{_STORE}.*\.args"]),
    "follow.existingSecret": ("acl", [rf"{_STORE}.*{_ENV}TIERLOG_FOLLOW_"]),
    "follow.accessKeyKey": ("ak", [rf"{_STORE}.*{_ENV}TIERLOG_FOLLOW_ACCESS_KEY"]),
    "follow.secretKeyKey": ("sk", [rf"{_STORE}.*{_ENV}TIERLOG_FOLLOW_SECRET_KEY"]),
    "queriers.enabled": (
        False,
        [
            r"Deployment/", r"PodDisruptionBudget/.*-querier", r"ConfigMap/.*queriers\.toml", r"Service/.*component",
            r"NetworkPolicy/.*", r"ServiceMonitor/tl-tierlog-front",
        ],
    ),
    "queriers.replicas": (5, [rf"{_QUERIER}.*\.replicas"]),
    "queriers.settings": ({"query": {"threads": 8}}, [r"ConfigMap/.*queriers\.toml", rf"{_QUERIER}.*checksum/config"]),
    "queriers.cache.size": ("9Gi", [rf"{_QUERIER}.*sizeLimit"]),
    "queriers.autoscaling.enabled": (True, [r"HorizontalPodAutoscaler/", rf"{_QUERIER}.*\.replicas"]),
    "queriers.autoscaling.minReplicas": (4, [r"Hor.*minReplicas"]),
    "queriers.autoscaling.maxReplicas": (40, [r"Hor.*maxReplicas"]),
    "queriers.autoscaling.targetCPUUtilizationPercentage": (50, [r"Hor.*averageUtilization"]),
    "queriers.podDisruptionBudget.enabled": (False, [r"PodDisruptionBudget/tl-tierlog-querier"]),
    "tokens.existingSecret": (
        "others",
        [rf"{kind}.*secretName" for kind in (_STORE, _QUERIER, _TEST)] + [_SECRETS, r"ServiceMonitor/.*credentials"],
    ),
    "tokens.fileKey": ("f.toml", [_TOML, _SUMS, rf"{_STORE}.*items", rf"{_QUERIER}.*items"]),
    "tokens.nodeKey": (
        "n",
        [rf"{kind}{part}" for kind in (_STORE, _QUERIER) for part in (rf"{_ENV}TIERLOG_TOKEN_FILE", ".*items")],
    ),
    "tokens.metricsKey": ("m", [r"ServiceMonitor/.*credentials\.key"]),
    "tokens.testKey": ("t", [rf"{_TEST}{_ENV}TIERLOG_TOKEN_FILE", rf"{_TEST}.*items"]),
    "tokens.adminKey": (
        "a",
        [r"Secret/tl-tierlog-tokens\.data\.a$", r".*"],  # without a secret of the user's: there is one of the chart
        {"tokens": {"existingSecret": ""}},
    ),
    "tls.existingSecret": ("", _WITHOUT_TLS, {"tls": {"tokensOverHttp": True}}),
    "tls.tokensOverHttp": (
        True,
        [rf"{kind}{_ENV}TIERLOG_TOKEN_OVER_HTTP" for kind in (_STORE, _QUERIER)] + _WITHOUT_TLS,
        {"tls": {"existingSecret": ""}},
    ),
    "tls.clientCaKey": (
        "clients.crt",
        [_TOML, _SUMS, r".*Probe\.(tcpSocket|httpGet)", rf".*{_ENV}TIERLOG_CLIENT_", r"ServiceMonitor/.*tlsConfig"],
    ),
    "service.type": ("LoadBalancer", [r"Service/tl-tierlog\.spec\.type"]),
    "service.annotations": ({"a": "b"}, [r"Service/tl-tierlog\.metadata\.annotations"]),
    "ingress.enabled": (False, [r"Ingress/"]),
    "ingress.className": ("nginx", [r"Ingress/.*ingressClassName"]),
    "ingress.annotations": ({"a": "b"}, [r"Ingress/.*annotations"]),
    "ingress.hosts": (["other.example.com"], [r"Ingress/.*host"]),
    "ingress.tlsSecret": ("logs-tls", [r"Ingress/.*tls"]),
    "tmpSize": ("1Gi", [rf"{kind}.*volumes\[tmp\].*sizeLimit" for kind in (_STORE, _QUERIER, _TEST)]),
    "networkPolicy.enabled": (False, [r"NetworkPolicy/"]),
    "networkPolicy.clients": ([{"podSelector": {"matchLabels": {"a": "b"}}}], [r"NetworkPolicy/.*-querier.*ingress"]),
    "networkPolicy.storeClients": ([{"namespaceSelector": {}}], [r"NetworkPolicy/.*-store.*ingress"]),
    "networkPolicy.bucketPeers": ([{"ipBlock": {"cidr": "10.0.0.0/8"}}], [r"NetworkPolicy/.*egress"]),
    "networkPolicy.bucketPorts": ([9000], [r"NetworkPolicy/.*egress"]),
    "networkPolicy.extraEgress": ([{"to": [{"podSelector": {}}]}], [r"NetworkPolicy/.*egress"]),
    "serviceAccount.create": (False, [r"ServiceAccount/", r".*serviceAccountName"]),
    "serviceAccount.name": ("logs", [r"ServiceAccount/", r".*serviceAccountName"]),
    "serviceAccount.annotations": ({"a": "b"}, [r"ServiceAccount/.*annotations"]),
    "jobs.image.repository": ("r/spark", [rf"{_JOB}.*image"]),
    "jobs.image.tag": ("1", [rf"{_JOB}.*image"]),
    "jobs.image.digest": (_DIGEST, [rf"{_JOB}.*image"]),
    "jobs.image.pullPolicy": ("Always", [rf"{_JOB}.*imagePullPolicy"]),
    "jobs.resources": ({"limits": {"memory": "8Gi"}}, [rf"{_JOB}.*resources"]),
    "jobs.scratch": ("9Gi", [rf"{_JOB}.*sizeLimit"]),
    "jobs.deadlineSeconds": (60, [rf"{_JOB}.*activeDeadlineSeconds"]),
    "jobs.successfulHistory": (0, [rf"{_JOB}.*successfulJobsHistoryLimit"]),
    "jobs.failedHistory": (0, [rf"{_JOB}.*failedJobsHistoryLimit"]),
    "jobs.extraEnv": ([{"name": "A", "value": "b"}], [rf"{_JOB}{_ENV}A\]"]),
    "jobs.nodeSelector": ({"a": "b"}, [rf"{_JOB}.*nodeSelector"]),
    "jobs.tolerations": ([{"key": "a"}], [rf"{_JOB}.*tolerations"]),
    "monitoring.labels": (
        {"release": "p"},
        [r"ServiceMonitor/.*labels", r"PrometheusRule/.*labels", r"ConfigMap/.*-dashboard.*labels"],
    ),
    "monitoring.serviceMonitor.enabled": (False, [r"ServiceMonitor/"]),
    "monitoring.serviceMonitor.interval": ("5s", [r"ServiceMonitor/.*interval"]),
    "monitoring.prometheusRule.enabled": (False, [r"PrometheusRule/"]),
    "monitoring.prometheusRule.runbookPrefix": ("https://git/", [r"PrometheusRule/.*runbook_url"]),
    "monitoring.prometheusRule.groupLagMessages": (5_000, [r"PrometheusRule/.*expr"]),
    "monitoring.dashboard.enabled": (False, [r"ConfigMap/.*-dashboard"]),
    "monitoring.dashboard.labels": ({"folder": "logs"}, [r"ConfigMap/.*-dashboard.*labels"]),
    "podSecurityContext": ({"fsGroup": 1}, [r".*\.securityContext\.fsGroup$"]),
    "securityContext": ({"procMount": "Default"}, [r".*containers.*securityContext\.procMount"]),
}  # fmt: skip
_OF_PODS: dict[str, tuple[object, str]] = {
    "resources": ({"limits": {"memory": "9Gi"}}, r".*resources\.limits\.memory"),
    "drainSeconds": (9, r".*preStop"),
    "terminationGracePeriodSeconds": (99, r".*terminationGracePeriodSeconds"),
    "extraArgs": (["--index-slots=5"], r".*\.args"),
    "extraEnv": ([{"name": "A", "value": "b"}], r".*env\[A\]"),
    "extraVolumes": ([{"name": "a", "emptyDir": {}}], r".*volumes\[a\]"),
    "extraVolumeMounts": ([{"name": "a", "mountPath": "/a"}], r".*volumeMounts\[a\]"),
    "podAnnotations": ({"a": "b"}, r".*template\.metadata\.annotations\.a"),
    "podLabels": ({"a": "b"}, r".*template\.metadata\.labels\.a"),
    "nodeSelector": ({"a": "b"}, r".*nodeSelector"),
    "affinity": ({"nodeAffinity": {"a": "b"}}, r".*affinity"),
    "tolerations": ([{"key": "a"}], r".*tolerations"),
    "topologySpreadConstraints": ([{"maxSkew": 2}], r".*topologySpreadConstraints"),
    "priorityClassName": ("high", r".*priorityClassName"),
}
for _name, (_value, _where) in _OF_PODS.items():
    _EFFECTS[f"stores.{_name}"] = (_value, [_STORE + _where])
    _EFFECTS[f"queriers.{_name}"] = (_value, [_QUERIER + _where])
for _name in ("nodeSelector", "tolerations"):  # the test's pod has to find a node too
    _EFFECTS[f"stores.{_name}"][1].append(f"{_TEST}.*{_name}")
for _name in ("merge", "verify", "expire", "rebuild"):
    _EFFECTS[f"jobs.{_name}.enabled"] = (False, [rf"CronJob/tl-tierlog-{_name}"])
    _EFFECTS[f"jobs.{_name}.schedule"] = ("1 2 3 4 5", [rf"CronJob/tl-tierlog-{_name}.*schedule"])
    _EFFECTS[f"jobs.{_name}.args"] = (["--dry-run"], [rf"CronJob/tl-tierlog-{_name}.*args"])


def _merged(first: Json, second: Json) -> Json:
    result = dict(first)
    for name, value in second.items():
        known = result.get(name)
        is_deeper = isinstance(known, dict) and isinstance(value, dict)
        result[name] = _merged(known, value) if is_deeper and known is not None else value
    return result


@pytest.mark.parametrize("name", sorted(_EFFECTS))
def test_a_value_changes_what_it_says_and_nothing_else(chart: Chart, name: str) -> None:
    value, wheres, *beside = _EFFECTS[name]
    base = _BASE
    if name.startswith("queriers.autoscaling") and not name.endswith("enabled"):
        base = _merged(_BASE, nested("queriers.autoscaling.enabled", True))
    if name.startswith("follow."):  # one store, and nobody else
        base = _merged(_BASE, {"queriers": {"enabled": False}, "stores": {"replicas": 1}})
        if name != "follow.enabled":
            base = _merged(base, {"follow": {**_BROKERS, "enabled": True, "existingSecret": "keys"}})
    changes = changed(chart.render(base), chart.render(_merged(_merged(base, dict(*beside)), nested(name, value))))
    assert changes, "it has no effect"
    for where in wheres:
        assert any(re.match(where, each) for each in changes), f"nothing changed at {where}"
    odd = [each for each in changes if not any(re.match(where, each) for where in wheres)]
    assert odd == []


def test_every_value_has_its_case() -> None:
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    assert {value.name for value in values_of(text)} == set(_EFFECTS)
