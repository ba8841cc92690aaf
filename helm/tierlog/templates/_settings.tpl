{{/*
(list root own): a settings file. `own` goes before `settings`, and what the chart knows before both. A scalar is written
as JSON has it, which TOML takes as the same.
*/}}
{{- define "tierlog.settings" -}}
{{- $root := index . 0 -}}
{{- $values := $root.Values -}}
{{- $all := mergeOverwrite (deepCopy $values.settings) (deepCopy (index . 1)) -}}
{{- $serve := dict -}}
{{- if $values.tls.existingSecret -}}
{{- $_ := set $serve "tls_certificate" "/etc/tierlog/tls/tls.crt" -}}
{{- $_ := set $serve "tls_key" "/etc/tierlog/tls/tls.key" -}}
{{- if $values.tls.clientCaKey -}}
{{- $_ := set $serve "tls_client_ca" (printf "/etc/tierlog/tls/%s" $values.tls.clientCaKey) -}}
{{- end -}}
{{- end -}}
{{- $own := dict "serve" $serve "access" (dict "tokens_file" (printf "/etc/tierlog/tokens/%s" $values.tokens.fileKey)) -}}
{{- if $values.cold.endpoint -}}
{{- $_ := set $own "cold" (dict "s3_endpoint" $values.cold.endpoint) -}}
{{- end -}}
{{- $all = mergeOverwrite $all $own -}}
{{- range $name, $value := $all -}}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ $name }} = {{ toJson $value }}
{{- end -}}
{{- end -}}
{{- range $group, $fields := $all -}}
{{- if kindIs "map" $fields }}

[{{ $group }}]
{{- range $name, $value := $fields -}}
{{- if not (kindIs "invalid" $value) }}
{{ $name }} = {{ toJson $value }}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
