{{/* Everything is named from here; templates/_refusals.tpl refuses a name that leaves no room for what follows it. */}}
{{- define "tierlog.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name -}}
{{- end -}}
{{- end }}

{{- define "tierlog.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "tierlog.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "tierlog.tokensSecret" -}}
{{- .Values.tokens.existingSecret | default (printf "%s-tokens" (include "tierlog.fullname" .)) -}}
{{- end }}

{{/* What selects the pods of this release; never changes, because selectors cannot. */}}
{{- define "tierlog.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tierlog.labels" -}}
{{ include "tierlog.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of pods: none that changes with the chart's version, which is no reason to start a store again. */}}
{{- define "tierlog.podLabels" -}}
{{ include "tierlog.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The component that takes requests of clients. */}}
{{- define "tierlog.front" -}}
{{- if .Values.queriers.enabled }}querier{{ else }}store{{ end -}}
{{- end }}

{{- define "tierlog.scheme" -}}
{{- if .Values.tls.existingSecret }}https{{ else }}http{{ end -}}
{{- end }}

{{- define "tierlog.frontUrl" -}}
{{- printf "%s://%s.%s.svc:%d" (include "tierlog.scheme" .) (include "tierlog.fullname" .) .Release.Namespace (int .Values.listen.port) -}}
{{- end }}

{{/* By which the others reach the store of a pod. */}}
{{- define "tierlog.storeUrl" -}}
{{- if .Values.stores.address -}}
{{- .Values.stores.address -}}
{{- else -}}
{{- printf "%s://$(POD_NAME).%s-nodes.%s.svc:%d" (include "tierlog.scheme" .) (include "tierlog.fullname" .) .Release.Namespace (int .Values.listen.port) -}}
{{- end -}}
{{- end }}

{{/* (list root image): bytes if a digest is given, else a tag. */}}
{{- define "tierlog.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion) -}}
{{- end -}}
{{- end }}

{{- define "tierlog.isBucket" -}}
{{- if hasPrefix "s3://" .Values.cold.url }}yes{{ end -}}
{{- end }}
