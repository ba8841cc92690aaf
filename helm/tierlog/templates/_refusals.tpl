{{/*
What the schema cannot say: values that are each right and wrong together. Every refusal is a sentence that says what
would happen, and what to do. Included by the first manifest, so that nothing is rendered beside a refusal.
*/}}
{{- define "tierlog.refusals" -}}
{{- $v := .Values -}}
{{- $url := $v.cold.url -}}
{{- $isBucket := eq (include "tierlog.isBucket" .) "yes" -}}
{{- $refusals := list -}}
{{- $say := "" -}}

{{- $name := include "tierlog.fullname" . -}}
{{- if gt (len $name) 40 -}}
{{- $refusals = append $refusals (printf "The name %q has %d characters, and what is named after it would pass Kubernetes' limits: set fullnameOverride to one of 40 at most." $name (len $name)) -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $name) -}}
{{- $refusals = append $refusals (printf "The name %q is no name of a Service: set fullnameOverride to lower-case letters, digits and dashes that begin with a letter." $name) -}}
{{- end -}}

{{- if and $isBucket (not (regexMatch "^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?$" $url)) -}}
{{- $refusals = append $refusals (printf "cold.url is %q, a cold tier without a bucket: say s3://BUCKET/PREFIX, or leave it empty for stores that archive nothing." $url) -}}
{{- end -}}
{{- if $isBucket -}}
{{- $ways := list -}}
{{- if $v.cold.existingSecret }}{{ $ways = append $ways "cold.existingSecret" }}{{ end -}}
{{- if $v.cold.roleAnnotations }}{{ $ways = append $ways "cold.roleAnnotations" }}{{ end -}}
{{- if $v.cold.ambient }}{{ $ways = append $ways "cold.ambient" }}{{ end -}}
{{- if eq (len $ways) 0 -}}
{{- $refusals = append $refusals "Nothing says who may use the bucket: set cold.existingSecret for keys, cold.roleAnnotations for a role of the service account, or cold.ambient if pods find credentials by themselves." -}}
{{- else if gt (len $ways) 1 -}}
{{- $refusals = append $refusals (printf "Both %s say who may use the bucket, and the SDK would silently take one of them: leave one." (join " and " $ways)) -}}
{{- end -}}
{{- if and $v.cold.roleAnnotations (not $v.serviceAccount.create) -}}
{{- $refusals = append $refusals "cold.roleAnnotations are annotations of a service account that serviceAccount.create=false does not make: annotate your own one and set cold.ambient." -}}
{{- end -}}
{{- else -}}
{{- if or $v.cold.existingSecret $v.cold.roleAnnotations $v.cold.ambient -}}
{{- $refusals = append $refusals "Credentials are given, and no bucket that they are for: set cold.url to s3://BUCKET/PREFIX, or leave them out." -}}
{{- end -}}
{{- end -}}
{{- if hasPrefix "file://" $url -}}
{{- if not $v.cold.existingClaim -}}
{{- $refusals = append $refusals "An archive in a directory of the pod would be lost with it: set cold.existingClaim to the claim that is mounted there." -}}
{{- end -}}
{{- if or (gt (int $v.stores.replicas) 1) $v.queriers.enabled -}}
{{- $refusals = append $refusals "An archive in a directory is for one pod, as only a bucket refuses the second of two writers: use s3:// for more stores or for queriers." -}}
{{- end -}}
{{- else if $v.cold.existingClaim -}}
{{- $refusals = append $refusals "cold.existingClaim is for an archive in a directory: set cold.url to file:///PATH, or leave the claim out." -}}
{{- end -}}

{{- if and (gt (int $v.stores.replicas) 1) (not $url) -}}
{{- $refusals = append $refusals (printf "%d stores without a cold tier that they share know nothing of each other, so half of the messages would not be found: set cold.url, or stores.replicas to 1." (int $v.stores.replicas)) -}}
{{- end -}}
{{- if and $v.stores.volume.existingClaim (ne (int $v.stores.replicas) 1) -}}
{{- $refusals = append $refusals (printf "%d stores on the one claim %q would be more than one writer on one volume: leave stores.volume.existingClaim out, or set stores.replicas to 1." (int $v.stores.replicas) $v.stores.volume.existingClaim) -}}
{{- end -}}
{{- if not (has $v.stores.volume.accessMode (list "ReadWriteOnce" "ReadWriteOncePod")) -}}
{{- $refusals = append $refusals (printf "stores.volume.accessMode is %q, and a store is the only writer of its volume: use ReadWriteOnce or ReadWriteOncePod." $v.stores.volume.accessMode) -}}
{{- end -}}
{{- if and $v.stores.restore (not $url) -}}
{{- $refusals = append $refusals "stores.restore makes stores from their archives, and there is none: set cold.url." -}}
{{- end -}}
{{- if and $v.stores.restore $v.stores.volume.existingClaim -}}
{{- $refusals = append $refusals "stores.restore needs an empty volume, and stores.volume.existingClaim names one with something on it: leave one of the two out." -}}
{{- end -}}
{{- if $v.follow.enabled -}}
{{- if not $url -}}
{{- $refusals = append $refusals "A store that follows brokers keeps what they remove, which needs an archive: set cold.url." -}}
{{- end -}}
{{- if not (and $v.follow.namesrv $v.follow.brokers) -}}
{{- $refusals = append $refusals "Which brokers are followed is not said: set follow.namesrv and follow.brokers." -}}
{{- end -}}
{{- if ne (int $v.stores.replicas) 1 -}}
{{- $refusals = append $refusals (printf "%d pods would follow the same brokers, each fencing the others: set stores.replicas to 1, and name all brokers in follow.brokers." (int $v.stores.replicas)) -}}
{{- end -}}
{{- if $v.queriers.enabled -}}
{{- $refusals = append $refusals "Queriers find stores by the cluster table, and stores that follow are not in it: set queriers.enabled to false, as the follower itself answers for all its brokers." -}}
{{- end -}}
{{- else if or $v.follow.namesrv $v.follow.brokers $v.follow.existingSecret -}}
{{- $refusals = append $refusals "Brokers are named, and nothing follows them: set follow.enabled." -}}
{{- end -}}
{{- if and $v.queriers.enabled (not $url) -}}
{{- $refusals = append $refusals "Queriers read archives and find stores by them, and there is none: set cold.url, or queriers.enabled to false." -}}
{{- end -}}
{{- $effective := mergeOverwrite (deepCopy $v.settings) (deepCopy $v.stores.settings) -}}
{{- if dig "cold" "single_writer" false $effective -}}
{{- if or (gt (int $v.stores.replicas) 1) $v.queriers.enabled -}}
{{- $refusals = append $refusals "cold.single_writer promises that one process writes to the bucket's prefix, and several pods would: use a bucket with safe conditional writes, or one store without queriers." -}}
{{- end -}}
{{- if and $isBucket (or $v.jobs.merge.enabled $v.jobs.expire.enabled $v.jobs.rebuild.enabled) -}}
{{- $refusals = append $refusals "cold.single_writer promises that no job writes to the bucket's prefix: set jobs.merge.enabled, jobs.expire.enabled and jobs.rebuild.enabled to false." -}}
{{- end -}}
{{- end -}}

{{- range $job := list "verify" "expire" "rebuild" -}}
{{- if and (get $v.jobs $job).enabled (not $isBucket) -}}
{{- $refusals = append $refusals (printf "jobs.%s works on an archive in a bucket, and there is none: set cold.url to s3://BUCKET/PREFIX, or jobs.%s.enabled to false." $job $job) -}}
{{- end -}}
{{- end -}}

{{- range $who := list "stores" "queriers" -}}
{{- $of := get $v $who -}}
{{- if lt (int $of.terminationGracePeriodSeconds) (add (int $of.drainSeconds) 11 | int) -}}
{{- $refusals = append $refusals (printf "%s.terminationGracePeriodSeconds is %d, and a stop takes up to 10 s after the %d of %s.drainSeconds: give it %d at least, or pods are killed while they flush." $who (int $of.terminationGracePeriodSeconds) (int $of.drainSeconds) $who (add (int $of.drainSeconds) 11)) -}}
{{- end -}}
{{- end -}}
{{- with $v.queriers.autoscaling -}}
{{- if .enabled -}}
{{- if not $v.queriers.enabled -}}
{{- $refusals = append $refusals "queriers.autoscaling has nothing to scale: set queriers.enabled." -}}
{{- end -}}
{{- if gt (int .minReplicas) (int .maxReplicas) -}}
{{- $refusals = append $refusals (printf "queriers.autoscaling.minReplicas is %d and above maxReplicas, which is %d." (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if not (dig "requests" "cpu" "" $v.queriers.resources) -}}
{{- $refusals = append $refusals "queriers.autoscaling goes by percents of the CPU request, and queriers.resources.requests.cpu is not there." -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- $refusals = append $refusals "An Ingress without a name would take requests for every name of the controller: set ingress.hosts." -}}
{{- end -}}
{{- if and $v.tls.clientCaKey (not $v.tls.existingSecret) -}}
{{- $refusals = append $refusals "tls.clientCaKey is a key of the secret that tls.existingSecret names, and none is named." -}}
{{- end -}}
{{- $keys := list $v.tokens.fileKey $v.tokens.nodeKey $v.tokens.metricsKey $v.tokens.testKey $v.tokens.adminKey -}}
{{- if and (not $v.tokens.existingSecret) (ne (len ($keys | uniq)) 5) -}}
{{- $refusals = append $refusals "The keys of the tokens' secret have to be five different ones: tokens.fileKey, nodeKey, metricsKey, testKey and adminKey." -}}
{{- end -}}
{{- if and (or (gt (int $v.stores.replicas) 1) $v.queriers.enabled) (not $v.tls.existingSecret) (not $v.tls.tokensOverHttp) -}}
{{- $refusals = append $refusals "Stores and queriers send requests on to each other, and without TLS anybody on the way could read the tokens in them: set tls.existingSecret, or tls.tokensOverHttp where nobody else is on the network or a mesh encrypts." -}}
{{- end -}}
{{- if $v.networkPolicy.enabled -}}
{{- $fromOutside := or $v.ingress.enabled (ne $v.service.type "ClusterIP") -}}
{{- if and $fromOutside (eq (toJson $v.networkPolicy.clients) (toJson (list (dict "podSelector" dict)))) -}}
{{- $refusals = append $refusals "Requests come from outside, and networkPolicy.clients lets in the pods of this namespace alone: name the Ingress controller, or the addresses that may come, there, or set networkPolicy.enabled to false." -}}
{{- end -}}
{{- if and $v.monitoring.serviceMonitor.enabled (not $v.networkPolicy.storeClients) -}}
{{- $refusals = append $refusals "monitoring.serviceMonitor has Prometheus come to the stores, and nobody but pods of this release may: name it in networkPolicy.storeClients, or set networkPolicy.enabled to false." -}}
{{- end -}}
{{- end -}}

{{- if $refusals -}}
{{- fail (printf "\n\n%s\n" (join "\n" $refusals)) -}}
{{- end -}}
{{- end }}
