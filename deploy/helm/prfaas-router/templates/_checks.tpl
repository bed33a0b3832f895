{{- /*
Refuses what a schema cannot: values that are each fine but wrong together.
*/ -}}
{{- define "prfaas-router.checkReplicas" -}}
{{- $url := default "memory://" .Values.config.store.url -}}
{{- if hasPrefix "memory:" $url -}}
{{- if .Values.autoscaling.enabled -}}
{{- fail "autoscaling.enabled needs a store that all replicas share: config.store.url is memory://, which lives in one pod" -}}
{{- end -}}
{{- if gt (int .Values.workers) 1 -}}
{{- fail (printf "workers is %d, but config.store.url is memory://, which lives in one process: set workers to 1 or name a shared store" (int .Values.workers)) -}}
{{- end -}}
{{- if gt (int .Values.replicaCount) 1 -}}
{{- fail (printf "replicaCount is %d, but config.store.url is memory://, which lives in one pod: set replicaCount to 1 or name a shared store" (int .Values.replicaCount)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling.minReplicas is larger than autoscaling.maxReplicas" -}}
{{- end -}}
{{- end -}}

{{- /* The grace period in whole seconds; 15 of them are for the process to start and end its drain. */ -}}
{{- define "prfaas-router.terminationGracePeriodSeconds" -}}
{{- $drain := addf .Values.config.drain.delay_seconds .Values.config.drain.grace_seconds | ceil | int -}}
{{- if kindIs "invalid" .Values.terminationGracePeriodSeconds -}}
{{- add $drain 15 -}}
{{- else -}}
{{- if lt (int .Values.terminationGracePeriodSeconds) $drain -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, but config.drain needs %d: the pod would be killed with streams running" (int .Values.terminationGracePeriodSeconds) $drain) -}}
{{- end -}}
{{- int .Values.terminationGracePeriodSeconds -}}
{{- end -}}
{{- end -}}

{{- /* An agent that measures nobody knows what, or that no gateway would hear. */ -}}
{{- define "prfaas-router.checkLinkAgent" -}}
{{- with .Values.linkAgent -}}
{{- if not .link -}}
{{- fail "linkAgent.link is empty: name the link that the agent measures" -}}
{{- end -}}
{{- if not .existingSecret -}}
{{- fail "linkAgent.existingSecret is empty: the admin API answers nobody from elsewhere without a key" -}}
{{- end -}}
{{- if not .nodeSelector -}}
{{- fail "linkAgent.nodeSelector is empty: every node would report its egress as all of the link's" -}}
{{- end -}}
{{- if not .urls -}}
{{- $links := list -}}
{{- range $.Values.config.links -}}{{- $links = append $links .name -}}{{- end -}}
{{- if not (has .link $links) -}}
{{- fail (printf "linkAgent.link is %q, and config.links has no link of that name" .link) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
