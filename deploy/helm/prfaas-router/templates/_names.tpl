{{- define "prfaas-router.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* The name of the objects; 53 characters leave room for "-admin" and the like. */ -}}
{{- define "prfaas-router.fullname" -}}
{{- $name := include "prfaas-router.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "prfaas-router.selectorLabels" -}}
app.kubernetes.io/name: {{ include "prfaas-router.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "prfaas-router.labels" -}}
{{ include "prfaas-router.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "prfaas-router.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "prfaas-router.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "prfaas-router.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "prfaas-router.adminSecretName" -}}
{{- default (printf "%s-admin" (include "prfaas-router.fullname" .)) .Values.admin.existingSecret -}}
{{- end -}}

{{- /* The port that carries /metrics: the admin listener's where there is one. */ -}}
{{- define "prfaas-router.metricsPortName" -}}
{{- if .Values.config.admin.port -}}admin{{- else -}}http{{- end -}}
{{- end -}}

{{- /* Of the ingest's pods: another name, so that no Service of the gateway finds them. */ -}}
{{- define "prfaas-router.kvmetaSelectorLabels" -}}
app.kubernetes.io/name: {{ include "prfaas-router.name" . }}-kvmeta
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "prfaas-router.kvmetaLabels" -}}
{{ include "prfaas-router.kvmetaSelectorLabels" . }}
app.kubernetes.io/component: ingest
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Of the link agents' pods: another name, as the ingest's have. */ -}}
{{- define "prfaas-router.linkAgentSelectorLabels" -}}
app.kubernetes.io/name: {{ include "prfaas-router.name" . }}-link-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "prfaas-router.linkAgentLabels" -}}
{{ include "prfaas-router.linkAgentSelectorLabels" . }}
app.kubernetes.io/component: telemetry
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Where the admin API of this release's own gateways is. */ -}}
{{- define "prfaas-router.ownAdminUrl" -}}
{{- with .Values.config.admin.port -}}
{{- printf "http://%s-admin.%s.svc:%d" (include "prfaas-router.fullname" $) $.Release.Namespace (int .) -}}
{{- else -}}
{{- printf "http://%s.%s.svc:%d" (include "prfaas-router.fullname" .) .Release.Namespace (int .Values.service.port) -}}
{{- end -}}
{{- end -}}

{{- /* Whether `prfaas kvmeta` runs beside the gateways: as `kvmeta.ingest: auto` has it. */ -}}
{{- define "prfaas-router.ingestsApart" -}}
{{- $shared := not (hasPrefix "memory:" (default "memory://" .Values.config.store.url)) -}}
{{- $mode := dig "kvmeta" "ingest" "auto" .Values.config -}}
{{- if and $shared (ne $mode "embedded") -}}true{{- else -}}false{{- end -}}
{{- end -}}

{{- /* Whether the gateway scales the engines' workloads, so that it needs a token and rights. */ -}}
{{- define "prfaas-router.scales" -}}
{{- eq "kubernetes" (dig "scheduler" "long_loop" "actuator" "dry_run" .Values.config) -}}
{{- end -}}

{{- define "prfaas-router.scaledNamespace" -}}
{{- default .Release.Namespace (dig "scheduler" "long_loop" "kubernetes" "namespace" "" .Values.config) -}}
{{- end -}}
