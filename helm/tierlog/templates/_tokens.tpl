{{/*
The data of the secret that the chart makes, as YAML: what the cluster holds already, and a new token for each key that
is not there. Drawn once in a rendering, so that all who ask see the same.
*/}}
{{- define "tierlog.tokens" -}}
{{- if not (hasKey .Values.tokens "drawn") -}}
{{- $known := lookup "v1" "Secret" .Release.Namespace (include "tierlog.tokensSecret" .) -}}
{{- $data := dig "data" dict $known -}}
{{- $file := list -}}
{{- with dig .Values.tokens.fileKey "" $data -}}
{{- $file = list (b64dec .) -}}
{{- end -}}
{{- range $name, $rights := dict
      .Values.tokens.adminKey (list "admin" `["produce", "read", "admin"]` `["*"]`)
      .Values.tokens.testKey (list "test" `["produce", "read"]` `["helm-test-*"]`)
      .Values.tokens.nodeKey (list "node" `["read"]` `["*"]`)
      .Values.tokens.metricsKey (list "metrics" `["read"]` `[]`) -}}
{{- if not (hasKey $data $name) -}}
{{- $token := printf "tierlog_%s" (randBytes 32 | b64dec | printf "%x") -}}
{{- $_ := set $data $name ($token | b64enc) -}}
{{- $file = append $file (printf "[[token]]\nname = %q\nsha256 = %q\nscopes = %s\ntopics = %s\n"
      (index $rights 0) (sha256sum $token) (index $rights 1) (index $rights 2)) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $data .Values.tokens.fileKey (join "\n" $file | b64enc) -}}
{{- $_ := set .Values.tokens "drawn" $data -}}
{{- end -}}
{{- toYaml .Values.tokens.drawn -}}
{{- end }}

{{/*
A digest of what a process reads at its start only: keys of the bucket, and the token that nodes show. The tokens file
and the certificate are read again by the process itself. An existing secret is looked at where there is a cluster to
ask; elsewhere its name stands for it.
*/}}
{{- define "tierlog.secretsDigest" -}}
{{- $seen := list -}}
{{- with .Values.cold.existingSecret -}}
{{- $found := lookup "v1" "Secret" $.Release.Namespace . -}}
{{- $seen = append $seen (list . (dig "data" dict $found)) -}}
{{- end -}}
{{- if .Values.tokens.existingSecret -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace .Values.tokens.existingSecret -}}
{{- $seen = append $seen (list .Values.tokens.existingSecret (dig "data" .Values.tokens.nodeKey "" $found)) -}}
{{- else -}}
{{- $seen = append $seen (index (include "tierlog.tokens" . | fromYaml) .Values.tokens.nodeKey) -}}
{{- end -}}
{{- $seen | toJson | sha256sum -}}
{{- end }}
