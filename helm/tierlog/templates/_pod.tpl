{{/* Parts of pods. `.component` is `store` or `querier`, `.of` its values, `.root` the chart's. */}}

{{- define "tierlog.placement" -}}
{{- $selector := dict "matchLabels" (merge (dict "app.kubernetes.io/component" .component) (include "tierlog.selector" .root | fromYaml)) -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .of.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- if .of.topologySpreadConstraints }}
  {{- toYaml .of.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector: {{- toYaml $selector | nindent 6 }}
{{- end }}
{{- with .of.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/*
Kubernetes would put variables of every Service into the pod, such as TIERLOG_HOT_SERVICE_HOST of one named tierlog-hot,
which is no setting, and earlier versions end at it: hence enableServiceLinks.
*/}}
{{- define "tierlog.identity" -}}
serviceAccountName: {{ include "tierlog.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end }}

{{/* Flags, because an image may have a variable for the address, which goes before a settings file. */}}
{{- define "tierlog.listenArgs" -}}
- --host={{ .Values.listen.host }}
- --port={{ .Values.listen.port }}
{{- end }}

{{- define "tierlog.bucketEnv" -}}
{{- with .Values.cold.region }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- with .Values.cold.existingSecret }}
- name: AWS_ACCESS_KEY_ID
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.cold.accessKeyIdKey | quote }}}}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.cold.secretAccessKeyKey | quote }}}}
{{- with $.Values.cold.sessionTokenKey }}
- name: AWS_SESSION_TOKEN
  valueFrom: {secretKeyRef: {name: {{ $.Values.cold.existingSecret }}, key: {{ . | quote }}}}
{{- end }}
{{- end }}
{{- end }}

{{/*
(list root file plain): what a process needs to ask a service with the token in a file of the tokens' secret; `plain`:
over plain HTTP too, where there is no TLS.
*/}}
{{- define "tierlog.clientEnv" -}}
{{- $values := (index . 0).Values -}}
- name: TIERLOG_TOKEN_FILE
  value: /etc/tierlog/tokens/{{ index . 1 }}
{{- if $values.tls.existingSecret }}
- name: TIERLOG_CA_FILE
  value: /etc/tierlog/tls/ca.crt
{{- if $values.tls.clientCaKey }}
- name: TIERLOG_CLIENT_CERTIFICATE
  value: /etc/tierlog/tls/tls.crt
- name: TIERLOG_CLIENT_KEY
  value: /etc/tierlog/tls/tls.key
{{- end }}
{{- else if index . 2 }}
- name: TIERLOG_TOKEN_OVER_HTTP
  value: "1"
{{- end }}
{{- end }}

{{- define "tierlog.probe" -}}
{{- if .root.Values.tls.clientCaKey -}}
tcpSocket: {port: http}
{{- else -}}
httpGet: {path: {{ .path }}, port: http, scheme: {{ include "tierlog.scheme" .root | upper }}}
{{- end -}}
{{- end }}

{{/* Alive and ready are kept apart: a store that cannot write, or a dead bucket, is no reason to start it again. */}}
{{- define "tierlog.probes" -}}
startupProbe:
  {{- include "tierlog.probe" (dict "root" .root "path" "/livez") | nindent 2 }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: {{ max 1 (div (int .startupSeconds) 2) }}
livenessProbe:
  {{- include "tierlog.probe" (dict "root" .root "path" "/livez") | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
readinessProbe:
  {{- include "tierlog.probe" (dict "root" .root "path" "/readyz") | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
lifecycle:
  preStop: {exec: {command: [sleep, {{ .of.drainSeconds | toString | quote }}]}}
{{- end }}

{{- define "tierlog.mounts" -}}
- {name: tokens, mountPath: /etc/tierlog/tokens, readOnly: true}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/tierlog/tls, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{/* (list root tokens): of the tokens' secret a pod sees the keys that it needs and no other. */}}
{{- define "tierlog.volumes" -}}
{{- $root := index . 0 -}}
- name: tokens
  secret:
    secretName: {{ include "tierlog.tokensSecret" $root }}
    defaultMode: 288
    items:
    {{- range index . 1 }}
      - {key: {{ . | quote }}, path: {{ . | quote }}}
    {{- end }}
{{- with $root.Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 288}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: {{ $root.Values.tmpSize }}}
{{- end }}
